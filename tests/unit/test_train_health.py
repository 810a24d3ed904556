"""Values that are not finite: training stops by name of their origin, and the last good checkpoint stays."""

from __future__ import annotations

import logging
import math

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.checkpoint import disk  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients  # noqa: E402
from airflow_provider_dtrain.train.gradients.precision import LossScale  # noqa: E402

CPU = torch.device("cpu")


def begun(folder, **options):
    return dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=folder, **options)


def data():
    numbers = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(torch.randn(16, 3, generator=numbers), torch.randn(16, 1, generator=numbers))


def trained(folder, bad_at, *, epochs=3, name="nll", **options):
    """Train with a loss that is NaN at a step, report it by a name, and save at the end of each epoch."""
    with begun(folder, **options) as ctx:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 1)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
        step = ctx.restore_checkpoint()
        for _ in ctx.epochs(epochs):
            for x, y in ctx.loader(data()):
                loss = (model(x) - y).square().mean()
                ctx.backward(loss * math.nan if step + 1 == bad_at else loss)
                ctx.step(optimizer)
                step += 1
                if name:
                    ctx.report(step, {name: loss})
            ctx.report_validation(step, {"accuracy": 0.5})
            ctx.save_checkpoint(step)
    return model


def saved(folder):
    return [disk.whole(path).step for path in sorted(folder.glob("step-*"))]


def are_finite(folder):
    model = torch.nn.Linear(3, 1)
    (path,) = folder.glob("step-*")
    dtrain.load_weights(model, path)
    return all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["nll", "cost", "perplexity", None])
def test_a_loss_that_is_nan_stops_the_training_whatever_its_name(tmp_path, name):
    with pytest.raises(
        dtrain.NonFiniteLossError, match=r"The loss of ctx.backward is NaN at backward pass 6 on rank 0"
    ):
        trained(tmp_path, 6, name=name)
    assert saved(tmp_path) == [4]
    assert are_finite(tmp_path)


def test_a_training_that_goes_on_with_nan_keeps_its_last_finite_checkpoint(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        model = trained(tmp_path, 6, fail_on_nan=False)
    assert not all(parameter.isfinite().all() for parameter in model.parameters())
    assert saved(tmp_path) == [4]
    assert are_finite(tmp_path)
    assert "left out, because the weights weight, bias of Linear are not finite" in caplog.text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["1.weight", "1.running_mean", "0.bias"])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, value, place):
    with begun(tmp_path) as ctx:
        model = ctx.prepare(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)))
        ctx.save_checkpoint(1)
        model.state_dict()[place].view(-1)[1] = value
        with pytest.raises(dtrain.NonFiniteWeightsError, match=f"weights {place} of Sequential are not finite"):
            ctx.save_checkpoint(2)
    assert saved(tmp_path) == [1]


def test_of_several_models_the_broken_one_is_named(tmp_path):
    with begun(tmp_path) as ctx:
        models = ctx.prepare(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
        models[1].weight.data.fill_(math.nan)
        with pytest.raises(dtrain.NonFiniteWeightsError, match="weights weight of model 2, Linear are"):
            ctx.save_checkpoint(1)


class Transitions(torch.nn.Module):
    """Weights and masks of which some are infinite by design."""

    def __init__(self):
        super().__init__()
        self.scores = torch.nn.Parameter(torch.tensor([0.0, -math.inf]))
        self.rest = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("count", torch.tensor(3))


def test_values_that_are_infinite_by_design_are_saved(tmp_path):
    with begun(tmp_path) as ctx:
        model = ctx.prepare(Transitions())
        ctx.save_checkpoint(1)
        model.rest.data.fill_(math.nan)
        with pytest.raises(dtrain.NonFiniteWeightsError, match="weights rest of Transitions"):
            ctx.save_checkpoint(2)
    assert saved(tmp_path) == [1]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_weights_of_every_type_are_looked_at(tmp_path, kind):
    with begun(tmp_path) as ctx:
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.ones(3, dtype=kind))
        ctx.prepare(model)
        assert ctx._gradients.health.dead() is None
        model.weight.data[2] = math.nan
        assert ctx._gradients.health.dead() == "weight of Module"


# -- the module that made the first one --------------------------------------------------------------------------------


class Log(torch.nn.Module):
    """Computes NaN of any input."""

    def forward(self, x):
        return (x - 1e6).log()


def broken(place):
    layers = [
        torch.nn.Linear(3, 4),
        torch.nn.Tanh(),
        torch.nn.Linear(4, 4),
        torch.nn.LayerNorm(4),
        torch.nn.Linear(4, 1),
    ]
    layers.insert(place, Log())
    return torch.nn.Sequential(*layers)


def said_of(model, x, loss_of=lambda output: output.square().mean()):
    gradients = Gradients(Distributed(RankEnvironment()), lambda: CPU, {})
    model = gradients.wrap_model(model)
    with pytest.raises(dtrain.NonFiniteLossError) as caught:
        gradients.backward(loss_of(model(x)))
    assert all(parameter.grad is None for parameter in model.parameters())
    return str(caught.value)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (1, "behind 0 (TanhBackward0)"),
        (2, "behind 0, in front of 3"),
        (3, "behind 2, in front of 4"),
        (4, "behind 3, in front of 5"),
        (5, "behind 4 (PowBackward0)"),
    ],
)
def test_the_place_in_the_model_that_computed_the_first_nan_is_named(place, expected):
    assert f"The first NaN was computed {expected}." in said_of(broken(place), torch.randn(2, 3))


def test_a_nan_in_the_batch_is_told_from_one_of_the_model():
    x = torch.tensor([[1.0, math.nan, 2.0]])
    assert "The first NaN was in the input of 0, so in the batch." in said_of(
        torch.nn.Sequential(torch.nn.Linear(3, 1)), x
    )


def test_a_nan_of_the_loss_function_is_told_from_one_of_the_model():
    said = said_of(torch.nn.Linear(3, 1), torch.randn(2, 3), lambda output: (output + math.nan).sum())
    assert "No value that the backward pass needs is NaN: see the last module of the model" in said


class Opaque(torch.autograd.Function):
    """Stands for a compiled part of a model."""

    @staticmethod
    def forward(ctx, x):
        y = (x - 1e6).log()
        ctx.save_for_backward(y)
        return y.nan_to_num(0.5) * math.nan

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_a_function_of_the_programs_own_is_named():
    said = said_of(torch.nn.Linear(3, 1), torch.randn(2, 3), lambda output: Opaque.apply(output).sum())
    assert "The first NaN was computed behind Linear (OpaqueBackward)." in said


def test_weights_that_are_nan_already_are_named_first():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    gradients = Gradients(Distributed(RankEnvironment()), lambda: CPU, {})
    gradients.wrap_model(model)
    model[1].weight.data[0, 1] = math.nan
    with pytest.raises(
        dtrain.NonFiniteLossError, match=r"first weights that are not finite are 1.weight of Sequential\."
    ):
        gradients.backward(model(torch.randn(2, 3)).sum())


@pytest.mark.parametrize("optimizations", [{}, {"aggregation_frequency": 2}])
def test_a_gradient_that_is_not_finite_stops_before_the_weights_change(tmp_path, optimizations):
    with begun(tmp_path, config={"optimizations": optimizations}) as ctx:
        model = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 1))
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), 1.0))
        before = [parameter.detach().clone() for parameter in model.parameters()]

        def train():
            for _ in range(2):
                # The root of zero has an infinite slope.
                ctx.backward((model[0](torch.ones(1, 3)) * 0).sqrt().sum() + model[1].weight.sum())
                ctx.step(optimizer, clip_grad_norm=1.0)

        said = "A gradient is not finite at backward pass .*That of 0 was the first"
        with pytest.raises(dtrain.NonFiniteLossError, match=said):
            train()
        assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_a_norm_that_overflows_is_no_gradient_that_is_not_finite(tmp_path):
    with begun(tmp_path) as ctx:
        model = torch.nn.Linear(1, 1, bias=False)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), 1.0))
        ctx.backward((model.weight * 1e30).sum())
        ctx.step(optimizer, clip_grad_norm=1.0)


# -- losses that are no end --------------------------------------------------------------------------------------------


def test_an_infinite_loss_whose_gradients_are_finite_is_no_end(tmp_path):
    with begun(tmp_path) as ctx:
        model = torch.nn.Linear(1, 1)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        ctx.backward(model(torch.ones(1, 1)).sum() + math.inf)
        ctx.step(optimizer)
        ctx._synchronize()
        ctx.save_checkpoint(1)
        model.weight.data.fill_(math.inf)
        ctx.backward(model(torch.ones(1, 1)).sum())
        with pytest.raises(dtrain.NonFiniteWeightsError, match="after the loss was inf in backward pass 2"):
            ctx._synchronize()


def test_a_loss_scale_leaves_out_a_step_whose_loss_is_nan():
    gradients = Gradients(Distributed(RankEnvironment()), lambda: CPU, {})
    model = gradients.wrap_model(torch.nn.Linear(1, 1))
    gradients._loss_scale = LossScale(torch.amp.GradScaler("cpu", init_scale=8.0))
    gradients.plain = False
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients.add_optimizer(optimizer)
    gradients.backward(model(torch.ones(1, 1)).sum() * math.nan)
    assert gradients.step(optimizer)[0] is False
    gradients.inspect()


@pytest.mark.parametrize("loss", [torch.ones(2, requires_grad=True) * math.nan])
def test_a_loss_of_several_numbers_is_not_looked_at(loss):
    Gradients(Distributed(RankEnvironment()), lambda: CPU, {}).backward(loss, gradient=torch.ones(2))


class OnDevice:
    """Stands for a number on a GPU, which counts how often it is read."""

    is_cpu = False

    def __init__(self, value):
        self.value = value
        self.reads = 0

    def numel(self):
        return 1

    def detach(self):
        return self

    def __float__(self):
        self.reads += 1
        return self.value


def test_a_loss_on_a_gpu_is_read_when_the_ranks_synchronize():
    health = Gradients(Distributed(RankEnvironment()), lambda: CPU, {}).health
    losses = [OnDevice(1.0), OnDevice(math.nan)]
    for number, loss in enumerate(losses, start=1):
        health.loss(loss, number)
    assert [loss.reads for loss in losses] == [0, 0]
    with pytest.raises(dtrain.NonFiniteLossError, match="NaN at backward pass 2 on rank 0"):
        health.check_held()
    assert [loss.reads for loss in losses] == [0, 1]
    health.check_held()


def test_a_norm_on_a_gpu_is_an_end_if_it_has_reached_the_weights():
    gradients = Gradients(Distributed(RankEnvironment()), lambda: CPU, {})
    model = gradients.wrap_model(torch.nn.Linear(1, 1))
    gradients.health.norm(OnDevice(math.inf), [], 1)
    gradients.inspect()
    gradients.health.norm(OnDevice(math.nan), [], 2)
    model.bias.data.fill_(math.nan)
    with pytest.raises(dtrain.NonFiniteWeightsError, match="bias of Linear .*norm of the gradients was nan in .* 2"):
        gradients.inspect()
