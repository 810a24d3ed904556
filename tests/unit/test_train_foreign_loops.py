"""Loops of other authors: several optimizers, closures, counting of batches, containers of batches."""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
import types

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.data.device import move  # noqa: E402
from airflow_provider_dtrain.train.errors import SetupError  # noqa: E402
from airflow_provider_dtrain.train.gradients.precision import to_float32  # noqa: E402
from tests.support.small_trial import Kept, Small  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
HPARAMS = {"global_batch_size": 8}


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a script alone, with a configuration."""
    monkeypatch.chdir(tmp_path)

    def begin(config=None, **options):
        return dtrain.init(hparams=HPARAMS, seed=3, config=config, **options)

    return begin


def linear(width=4, out=1):
    generator = torch.Generator().manual_seed(1)
    layer = torch.nn.Linear(width, out, bias=False)
    layer.weight.data = torch.randn(out, width, generator=generator)
    return layer


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


# -- several optimizers ------------------------------------------------------------------------------------------------


def adversarial(ctx, batches, *, toggle):
    """Train a generator against a discriminator. Return both weights."""
    maker, judge = linear(4, 4), linear(4, 1)
    maker_step, judge_step = sgd(maker), sgd(judge)
    ctx.prepare(maker, judge, maker_step, judge_step)
    for x in batches:
        with ctx.toggle(judge_step) if toggle else torch.enable_grad():
            ctx.backward(judge(x).mean() - judge(maker(x).detach()).mean())
            ctx.step(judge_step)
        with ctx.toggle(maker_step) if toggle else torch.enable_grad():
            ctx.backward(judge(maker(x)).mean())
            ctx.step(maker_step)
    return [maker.weight.detach().clone(), judge.weight.detach().clone()]


def textbook(batches, k):
    """The same with torch alone: the mean gradient of k batches."""
    maker, judge = linear(4, 4), linear(4, 1)
    maker_step, judge_step = sgd(maker), sgd(judge)
    sums = {model: torch.zeros_like(model.weight) for model in (maker, judge)}
    for index, x in enumerate(batches, 1):
        losses = (
            (judge, judge_step, lambda x=x: judge(x).mean() - judge(maker(x).detach()).mean()),
            (maker, maker_step, lambda x=x: judge(maker(x)).mean()),
        )
        for model, optimizer, loss in losses:
            sums[model] += torch.autograd.grad(loss(), model.weight)[0]
            if index % k == 0:
                model.weight.grad = sums[model] / k
                optimizer.step()
                sums[model] = torch.zeros_like(model.weight)
    return [maker.weight.detach(), judge.weight.detach()]


@pytest.mark.parametrize("k", [1, 3])
def test_toggle_trains_adversaries_as_the_textbook_does(start, k):
    batches = torch.randn(6, 8, 4, generator=torch.Generator().manual_seed(2))
    with start({"optimizations": {"aggregation_frequency": k}}) as ctx:
        mine = adversarial(ctx, batches, toggle=True)
    for weight, expected in zip(mine, textbook(batches, k), strict=True):
        torch.testing.assert_close(weight, expected)


def test_gradients_of_the_other_loss_are_warned_of_once(start, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("airflow_provider_dtrain.train"), "propagate", True)
    batches = torch.randn(6, 8, 4)
    with start() as ctx:
        adversarial(ctx, batches, toggle=True)
    assert "toggle" not in caplog.text
    with start() as ctx:
        adversarial(ctx, batches, toggle=False)
    assert caplog.text.count("with ctx.toggle(optimizer)") == 1


def test_toggle_gives_back_what_takes_gradients_also_after_an_error(start):
    with start() as ctx:
        one, two = linear(), linear()
        two.weight.requires_grad_(False)
        three = linear()
        optimizers = ctx.prepare(sgd(one), sgd(two), sgd(three))

        def fail():
            with ctx.toggle(optimizers[0]):
                assert [m.weight.requires_grad for m in (one, two, three)] == [True, False, False]
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert [m.weight.requires_grad for m in (one, two, three)] == [True, False, True]
        with pytest.raises(SetupError, match="toggle takes a prepared optimizer, got Adam"):
            ctx.toggle(torch.optim.Adam(one.parameters())).__enter__()


def test_several_optimizers_count_one_batch(start):
    with start({"scheduling_unit": 2}) as ctx:
        meetings = []
        ctx._reporter.synchronize = lambda vote, counts: meetings.append(ctx._batches) or (vote, counts)
        adversarial(ctx, torch.randn(4, 8, 4), toggle=True)
        assert ctx._batches == 4
        assert meetings == [2, 4]
        data = torch.utils.data.TensorDataset(torch.randn(16, 4))
        one = linear()
        optimizer = ctx.prepare(sgd(one))
        for (x,) in ctx.loader(data):
            for _ in range(3):
                ctx.backward(one(x).mean())
                ctx.step(optimizer)
        assert ctx._batches == 6


# -- one step ----------------------------------------------------------------------------------------------------------


def test_a_script_sees_whether_a_step_was_taken(start):
    with start({"optimizations": {"aggregation_frequency": 2}}) as ctx:
        model = linear()
        optimizer = ctx.prepare(model, sgd(model))[1]
        taken = []
        for _ in range(4):
            ctx.backward(model(torch.ones(1, 4)).sum())
            ctx.step(optimizer)
            taken.append(ctx.stepped)
    assert taken == [False, True, False, True]


def test_lbfgs_steps_with_a_closure_as_alone(start):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(5))
    y = x.sum(1, keepdim=True)

    def fit(model, step):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
        for _ in range(2):
            step(model, optimizer)
        return model.weight.detach()

    def alone(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)

    with start() as ctx:

        def ours(model, optimizer):
            def closure():
                loss = torch.nn.functional.mse_loss(model(x), y)
                ctx.backward(loss)
                return loss

            ctx.prepare(model, optimizer)
            ctx.step(optimizer, closure)
            assert ctx.stepped

        assert torch.equal(fit(linear(), ours), fit(linear(), alone))


def test_a_closure_is_refused_where_a_step_has_several_batches(start):
    with start({"optimizations": {"aggregation_frequency": 2}}) as ctx:
        model = linear()
        optimizer = torch.optim.LBFGS(model.parameters())
        ctx.prepare(model, optimizer)
        with pytest.raises(SetupError, match="one batch per step.*got optimizations.aggregation_frequency"):
            ctx.step(optimizer, lambda: torch.zeros(()))
        ctx._gradients.changed = []


def test_gradients_are_clipped_by_value(start):
    with start() as ctx:
        model = linear()
        before = model.weight.detach().clone()
        optimizer = ctx.prepare(model, sgd(model, lr=1.0))[1]
        ctx.backward(model(torch.tensor([[5.0, -5.0, 0.1, 0.0]])).sum())
        assert ctx.step(optimizer, clip_grad_value=0.5) is None
        torch.testing.assert_close(before - model.weight.detach(), torch.tensor([[0.5, -0.5, 0.1, 0.0]]))
        with pytest.raises(SetupError, match="clip_grad_norm or clip_grad_value, got both"):
            ctx.step(optimizer, clip_grad_norm=1.0, clip_grad_value=1.0)
        with pytest.raises(SetupError, match="clip_grad_value must be a number above 0, got nan"):
            ctx.step(optimizer, clip_grad_value=math.nan)


def test_backward_takes_the_options_of_torch(start):
    with start() as ctx:
        weight = torch.nn.Parameter(torch.ones(2))
        ctx.prepare(torch.optim.SGD([weight], lr=0.1))
        loss = weight * weight
        ctx.backward(loss, gradient=torch.tensor([1.0, 2.0]), retain_graph=True)
        ctx.backward(loss, gradient=torch.tensor([1.0, 0.0]))
        assert weight.grad.tolist() == [4.0, 4.0]


def test_optimizations_without_effect_are_refused_at_the_first_validation(start):
    def train(ctx, epochs):
        model = linear()
        optimizer = ctx.prepare(model, sgd(model))[1]
        for epoch in ctx.epochs(3):
            epochs.append(epoch)
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            ctx.report_validation(epoch, {"error": 1.0})

    epochs = []
    with (
        pytest.raises(SetupError, match="optimizations.mixed_precision had no effect"),
        start({"optimizations": {"mixed_precision": "bf16"}}) as ctx,
    ):
        train(ctx, epochs)
    assert epochs == [0, 1], "a validation before the first step is allowed"


# -- the place in the data ---------------------------------------------------------------------------------------------


def test_a_run_that_ended_an_epoch_with_zip_resumes_with_the_next_one(start, tmp_path):
    data = torch.utils.data.TensorDataset(torch.arange(32).float())

    def run(epochs):
        seen = []
        with start(checkpoint_dir=tmp_path / "zip") as ctx:
            model = linear(1)
            optimizer = ctx.prepare(model, sgd(model))[1]
            ctx.restore_checkpoint()
            for epoch in ctx.epochs(epochs):
                pairs = list(zip(ctx.loader(data), ctx.loader(data), strict=False))
                for (one,), _ in pairs:
                    ctx.backward(model(one[:, None]).sum() * 0)
                    ctx.step(optimizer)
                seen.append((epoch, len(pairs)))
                ctx.save_checkpoint(epoch + 1)
        return seen

    assert run(2) == [(0, 4), (1, 4)]
    assert run(4) == [(2, 4), (3, 4)]


# -- containers --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    name: str = "a"
    more: list = dataclasses.field(default_factory=list)


class Bag(collections.UserDict):
    pass


def test_batches_of_any_container_are_moved_and_keep_their_type():
    array = np.ones(2, "f")
    frozen = move(Frozen(array, more=[array]), CPU)
    assert isinstance(frozen.x, torch.Tensor)
    assert isinstance(frozen.more[0], torch.Tensor)
    assert frozen.name == "a"
    default = move(collections.defaultdict(list, a=array), CPU)
    assert isinstance(default["a"], torch.Tensor)
    assert default["new"] == []
    assert type(move(collections.OrderedDict(a=array), CPU)) is collections.OrderedDict
    bag = move(Bag(a=array), CPU)
    assert type(bag) is Bag
    assert isinstance(bag["a"], torch.Tensor)
    view = move(types.MappingProxyType({"a": array}), CPU)
    assert isinstance(view["a"], torch.Tensor)
    point = collections.namedtuple("Point", "x y")  # noqa: PYI024
    assert isinstance(move(point(array, None), CPU).x, torch.Tensor)


def test_a_batch_that_is_on_the_device_is_not_copied():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    batch = {"x": torch.ones(2), "y": [torch.ones(1), Frozen(torch.ones(1))], "n": 3, "text": "abc", "packed": packed}
    assert move(batch, CPU) is batch


def test_half_precision_in_a_dataclass_becomes_single():
    half = torch.ones(2, dtype=torch.bfloat16)
    found = to_float32(Frozen(half, more=[{"deep": half}]))
    assert found.x.dtype is found.more[0]["deep"].dtype is torch.float32


def test_each_batch_is_converted_whatever_the_first_one_was():
    kinds = []

    class Mixed(torch.utils.data.IterableDataset):
        def __len__(self):
            return 4

        def __iter__(self):
            yield from (torch.ones(2, 4), np.ones((2, 4), "f"), np.ones((2, 4), "f"), torch.ones(2, 4))

    class Trial(Small):
        def build_training_data_loader(self):
            return torch.utils.data.DataLoader(Mixed(), batch_size=None, collate_fn=lambda batch: batch)

        def train_batch(self, batch, epoch_idx, batch_idx):
            kinds.append(type(batch))
            loss = self.model(batch).sum()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return loss

    Kept(Trial).run({"batches": 4})
    assert kinds == [torch.Tensor] * 4


# -- compiled models ---------------------------------------------------------------------------------------------------


def partly_compiled():
    model = torch.nn.Sequential(linear(), torch.nn.BatchNorm1d(1))
    model[0] = torch.compile(model[0], backend="eager")
    return model


MODELS = {
    "plain": lambda: torch.nn.Sequential(linear(), torch.nn.BatchNorm1d(1)),
    "compiled": lambda: torch.compile(torch.nn.Sequential(linear(), torch.nn.BatchNorm1d(1)), backend="eager"),
    "partly compiled": partly_compiled,
}


@pytest.mark.parametrize("saved", MODELS)
def test_a_checkpoint_fits_a_model_whether_compiled_or_not(start, tmp_path, saved):
    with start(checkpoint_dir=tmp_path / "kept") as ctx:
        weights = ctx.prepare(MODELS[saved]()).state_dict()
        next(iter(weights.values())).fill_(7.0)
        ctx.save_checkpoint(3)
    for make in MODELS.values():
        with start(checkpoint_dir=tmp_path / "kept") as ctx:
            model = ctx.prepare(make())
            assert ctx.restore_checkpoint() == 3
        assert next(model.parameters()).tolist() == [[7.0] * 4]
