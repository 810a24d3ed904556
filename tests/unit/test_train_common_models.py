"""Things that all ranks must have in common: models that they do not exchange, random numbers, and every gradient."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from airflow_provider_dtrain.train import initialization  # noqa: E402
from airflow_provider_dtrain.train.data.batch_size import Hparams  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.errors import SetupError  # noqa: E402
from airflow_provider_dtrain.train.gradients.common_weights import _fingerprint, refuse_different  # noqa: E402
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients  # noqa: E402
from tests.support.rank_threads import in_ranks  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


# -- models that are not exchanged -------------------------------------------------------------------------------------


def filled(value, *, frozen=True):
    """Return a model whose weights have a value."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    for parameter in model.parameters():
        parameter.data.fill_(value)
    return model.requires_grad_(not frozen)


def prepared(tmp_path, make, *, config=None, **options):
    """Return what each of three ranks gets from ``ctx.prepare``: None, or its error."""

    def body(ranks):
        env = RankEnvironment(rank=ranks.rank, world_size=ranks.size, config=config or {})
        ctx = initialization._build(env, ranks, 3, lambda: CPU, Hparams({}), tmp_path, True, 60.0)
        ctx.prepare(make(ranks.rank), **options)

    return in_ranks(3, body)


def test_a_frozen_model_that_differs_on_a_rank_is_refused_by_name(tmp_path):
    assert prepared(tmp_path, lambda _: filled(1.0)) == [None] * 3
    one, _, three = prepared(tmp_path, lambda rank: filled(1.0 + (rank == 2)))
    assert str(one).startswith(
        "Sequential must be the same on all ranks, because they do not exchange it, but 0.weight differs between rank "
        "0 and rank 2. Create the model before the first epoch"
    )
    assert isinstance(three, SetupError)


def test_buffers_of_a_frozen_model_count_too(tmp_path):
    def make(rank):
        model = filled(1.0)
        model[1].running_mean += rank
        return model

    assert all("1.running_mean differs" in str(error) for error in prepared(tmp_path, make))


def test_a_model_that_is_left_as_it_is_may_differ_where_no_checkpoint_has_it(tmp_path):
    def make(rank):
        return filled(float(rank), frozen=False)

    assert all("0.weight differs" in str(error) for error in prepared(tmp_path, make, wrap=False))
    assert prepared(tmp_path, make, wrap=False, config={"checkpoint_policy": "none"}) == [None] * 3


def test_averages_of_weights_are_compared(tmp_path):
    def make(rank):
        return torch.optim.swa_utils.AveragedModel(filled(float(rank)))

    assert all("AveragedModel must be the same" in str(error) for error in prepared(tmp_path, make))


TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)


@given(st.sampled_from(TYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 2**31), st.data())
def test_a_change_of_any_number_changes_the_fingerprint_and_a_change_of_the_layout_does_not(dtype, shape, seed, data):
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randint(0, 2, shape, generator=generator).to(dtype)
    assert int(_fingerprint(tensor)) == int(_fingerprint(tensor.clone()))
    if len(shape) > 1:
        assert int(_fingerprint(tensor)) == int(
            _fingerprint(tensor.t().contiguous().t() if len(shape) == 2 else tensor)
        )
    # Also where the tensor begins in the middle of its memory.
    shifted = torch.cat([tensor.new_zeros(1), tensor.reshape(-1)])[1:]
    assert int(_fingerprint(shifted)) == int(_fingerprint(tensor.reshape(-1)))
    if tensor.numel():
        place = data.draw(st.integers(0, tensor.numel() - 1))
        other = tensor.clone()
        other.view(-1)[place] = 1 - other.view(-1)[place].to(torch.float64 if not dtype.is_complex else dtype)
        assert int(_fingerprint(tensor)) != int(_fingerprint(other))


def test_the_order_of_equal_numbers_counts():
    orders = {int(_fingerprint(torch.randperm(50, generator=torch.Generator().manual_seed(i)))) for i in range(20)}
    assert len(orders) == 20


def test_types_and_shapes_count():
    for one, other in ((torch.zeros(4), torch.zeros(2, 2)), (torch.zeros(2), torch.zeros(1, dtype=torch.float64))):
        models = []
        for tensor in (one, other):
            models.append(torch.nn.Module())
            models[-1].register_buffer("state", tensor)
        errors = in_ranks(2, lambda ranks, models=models: refuse_different([models[ranks.rank]], ranks))
        assert all("state differs" in str(error) for error in errors)


# -- random numbers ----------------------------------------------------------------------------------------------------


class Two(Distributed):
    """One of two ranks, whose other one says the same."""

    def __init__(self, rank=0):
        super().__init__(RankEnvironment(rank=rank, world_size=2))

    def allgather(self, value):
        return [value, value]


def draws():
    return random.random(), torch.rand(()).item()


def first_draws(rank, tmp_path, begin):
    """Return what a rank draws after ``ctx.prepare``, and once it trains."""
    env = RankEnvironment(rank=rank, world_size=2)
    ctx = initialization._build(env, Two(rank), 3, lambda: CPU, Hparams({"global_batch_size": 4}), tmp_path, True, 60.0)
    torch.manual_seed(3)
    random.seed(3)
    model = torch.nn.Linear(1, 1)
    ctx.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    ctx.restore_checkpoint()
    before = draws()
    begin(ctx, model)
    return before, draws()


def begin_epoch(ctx, model):
    next(ctx.epochs(1))


def hand_out(ctx, model):
    next(iter(ctx.loader(torch.utils.data.TensorDataset(torch.zeros(8, 1)))))


def backward(ctx, model):
    ctx.backward(model(torch.ones(1, 1)).sum())


@pytest.mark.parametrize("begin", [begin_epoch, hand_out, backward], ids=lambda function: function.__name__)
def test_all_ranks_draw_alike_until_the_training_begins(tmp_path, begin):
    (one, one_trains), (two, two_trains) = (first_draws(rank, tmp_path / str(rank), begin) for rank in (0, 1))
    assert one == two
    assert one_trains != two_trains


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 4)

    def forward(self, x):
        x = self.layer(x).exp()
        return {"losses": [x.mean(), x.square().mean()]}


def steps(train, *, models=1, every=1, count=3):
    """Run ``train(gradients, models, optimizers)`` some times."""
    it = Gradients(Two(), lambda: CPU, {"aggregation_frequency": every})
    wrapped = [it.wrap_model(Heads()) for _ in range(models)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in wrapped]
    for optimizer in optimizers:
        it.add_optimizer(optimizer)
    for _ in range(count):
        train(it, wrapped, optimizers)
    return wrapped


X = torch.ones(3, 2)


def two_losses(it, models, optimizers):
    one, two = models[0](X)["losses"]
    it.backward(one, retain_graph=True)
    it.backward(two)
    it.step(optimizers[0])


def two_forwards_first(it, models, optimizers):
    one, two = models[0](X)["losses"][0], models[0](X)["losses"][1]
    it.backward(one)
    it.backward(two)
    it.step(optimizers[0])


def the_sum(it, models, optimizers):
    it.backward(sum(models[0](X)["losses"]))
    it.step(optimizers[0])


def one_after_another(it, models, optimizers):
    for index in range(2):
        it.backward(models[0](X)["losses"][index])
    it.step(optimizers[0])


def two_models(it, models, optimizers):
    outputs = [sum(model(X)["losses"]) for model in models]
    for loss, optimizer in zip(outputs, optimizers, strict=True):
        it.backward(loss)
        it.step(optimizer)


def gradient_penalty(it, models, optimizers):
    x = X.clone().requires_grad_()
    score = sum(models[0](x)["losses"])
    (slope,) = torch.autograd.grad(score, x, create_graph=True)
    it.backward(slope.square().sum() + sum(models[0](X)["losses"]))
    it.step(optimizers[0])


def another_loss(it, models, optimizers):
    it.backward(torch.nn.Parameter(torch.ones(())) * 2)
    the_sum(it, models, optimizers)


@pytest.mark.parametrize("train", [two_losses, two_forwards_first], ids=lambda function: function.__name__)
def test_a_second_backward_pass_through_a_forward_pass_is_refused(group, train):
    with pytest.raises(SetupError, match=r"once for a forward pass of Heads.*Add the losses"):
        steps(train)


@pytest.mark.parametrize(
    ("train", "models"),
    [(the_sum, 1), (one_after_another, 1), (two_models, 2), (gradient_penalty, 1), (another_loss, 1)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_orders_of_passes_are_right(group, train, models):
    steps(train, models=models)


def test_gradients_that_are_added_up_without_an_exchange_may_come_in_several_passes(group):
    """Only the last batch of a group exchanges them."""

    steps(two_losses, every=2, count=1)
    with pytest.raises(SetupError, match="once for a forward pass"):
        steps(two_losses, every=2, count=4)


def test_a_model_with_one_loss_is_not_watched(group):
    (model,) = steps(the_sum)
    assert not model.watches
    (model,) = steps(one_after_another)
    assert not model.watches
    model, _ = steps(two_models, models=2)
    assert model.watches
