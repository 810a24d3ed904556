"""Plain gradients beside sharded ones in one optimizer, as tensor parallelism leaves them, and across a change."""

from __future__ import annotations

import copy
import itertools
import math

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402

from airflow_provider_dtrain.train import sharded_tensors  # noqa: E402
from airflow_provider_dtrain.train.gradients import aggregation  # noqa: E402
from airflow_provider_dtrain.train.gradients.aggregation import GradientGroup, UnfinishedGroup  # noqa: E402
from airflow_provider_dtrain.train.gradients.clipping import Clip  # noqa: E402
from airflow_provider_dtrain.train.gradients.kinds import by_kind, unscale  # noqa: E402
from airflow_provider_dtrain.train.gradients.precision import LossScale  # noqa: E402
from airflow_provider_dtrain.train.reports import metrics  # noqa: E402

if tuple(int(digit) for digit in torch.__version__.split("+")[0].split(".")[:2]) < sharded_tensors.TORCH_NEEDED:
    pytest.skip("sharded models need a newer torch", allow_module_level=True)

from torch.distributed.tensor import (  # noqa: E402
    DeviceMesh,
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
    empty,
    init_device_mesh,
)


@pytest.fixture(scope="module")
def group(request):
    """Create a process group of some ranks, of which this process is one. The others exist by name only."""
    rank, size = getattr(request, "param", (0, 1))
    if size == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    yield dist.group.WORLD
    dist.destroy_process_group()


def mixed(*shapes, placements=None):
    """Return plain parameters with gradients, and copies that are sharded in turn over a mesh of one rank."""
    placements = placements or [(), (Shard(0),), (Replicate(),)]
    mesh = init_device_mesh("cpu", (1,))
    numbers = torch.Generator().manual_seed(3)
    plain, parameters = [], []
    for shape, placed in zip(shapes, itertools.cycle(placements)):
        plain.append(torch.nn.Parameter(torch.randn(shape, generator=numbers)))
        plain[-1].grad = torch.randn(shape, generator=numbers)
        if placed:
            parameters.append(torch.nn.Parameter(distribute_tensor(plain[-1].detach().clone(), mesh, placed)))
            parameters[-1].grad = distribute_tensor(plain[-1].grad.clone(), mesh, placed)
        else:
            parameters.append(copy.deepcopy(plain[-1]))
            parameters[-1].grad = plain[-1].grad.clone()
    return plain, parameters


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_same(parameters, plain, **tolerance):
    for one, other in zip(parameters, plain, strict=True):
        torch.testing.assert_close(whole(one.grad), other.grad, **tolerance)


SHAPES = [(4, 3), (6, 2), (5,), (3,), (2, 2), (7,)]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_the_norm_of_plain_and_sharded_gradients_together_is_clipped_as_torch_clips_plain_ones(limit):
    plain, parameters = mixed(*SHAPES)
    assert len(by_kind(parameters)) == 3
    expected = torch.nn.utils.clip_grad_norm_(plain, limit)
    norm = Clip(norm=limit).apply(torch.optim.SGD(parameters))
    torch.testing.assert_close(norm, expected)
    assert type(norm) is torch.Tensor
    assert_same(parameters, plain)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("placed", [(), (Shard(0),)], ids=["plain", "sharded"])
def test_gradients_of_one_kind_are_clipped_bit_for_bit_as_by_torch(placed):
    _, ours = mixed(*SHAPES, placements=[placed])
    _, theirs = mixed(*SHAPES, placements=[placed])
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    norm = Clip(norm=0.5).apply(torch.optim.SGD(ours))
    assert type(norm) is torch.Tensor
    assert torch.equal(norm, whole(expected))
    assert all(torch.equal(whole(one.grad), whole(other.grad)) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.usefixtures("group")
def test_a_step_without_any_gradient_has_the_norm_zero():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert Clip(norm=1.0).apply(torch.optim.SGD([parameter])).item() == 0


@pytest.mark.usefixtures("group")
def test_values_and_groups_of_batches_take_gradients_of_several_kinds():
    plain, parameters = mixed(*SHAPES)
    group = GradientGroup(torch.optim.SGD(parameters))
    group.count = 3
    group.divide()
    for parameter in plain:
        parameter.grad.div_(3)
    assert_same(parameters, plain)
    torch.nn.utils.clip_grad_value_(plain, 0.1)
    assert Clip(value=0.1).apply(group.optimizer) is None
    assert_same(parameters, plain)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("broken", [None, 0, 1, 2])
def test_a_loss_scale_is_removed_from_gradients_of_several_kinds_and_each_overflow_is_seen(broken):
    plain, parameters = mixed(*SHAPES)
    if broken is not None:
        with torch.no_grad():
            gradient = parameters[broken].grad
            (gradient.to_local() if isinstance(gradient, DTensor) else gradient).view(-1)[0] = float("inf")
    before = [whole(parameter).detach().clone() for parameter in parameters]
    scale = LossScale(torch.amp.GradScaler("cpu", init_scale=8.0))
    scale.scaler.scale(torch.ones(1))
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    unscale(scale.scaler, optimizer)
    assert "_unscale_grads_" not in vars(scale.scaler)
    assert scale.step(optimizer) == (broken is None)
    for parameter, kept, other in zip(parameters, before, plain, strict=True):
        expected = kept - other.grad / 8 if broken is None else kept
        torch.testing.assert_close(whole(parameter).detach(), expected)


#: Meshes and placements, of which some leave a rank with a smaller part or with none.
MESHES = [
    ((3,), (Shard(0),)),
    ((3,), (Shard(1),)),
    ((3,), (Replicate(),)),
    ((6,), (Shard(0),)),
    ((2, 3), (Shard(0), Shard(1))),
    ((2, 3), (Replicate(), Shard(0))),
    ((2, 3), (Shard(0), Shard(0))),
    ((3, 2), (Shard(1), Replicate())),
]


@pytest.mark.parametrize("group", [(0, 6)], indirect=True)
@pytest.mark.parametrize(("shape", "placements"), MESHES)
def test_a_whole_gradient_is_sharded_as_its_parameter_without_a_message(group, shape, placements):
    numbers = torch.arange(5 * 4.0).view(5, 4)
    for first in range(6):
        # This rank is at each place of the mesh in turn, or outside of it.
        ranks = [(first + number) % 6 for number in range(math.prod(shape))]
        mesh = DeviceMesh("cpu", torch.tensor(ranks).view(shape))
        parameter = empty(5, 4, device_mesh=mesh, placements=placements)
        got = sharded_tensors.sharded_as(numbers, parameter)
        assert (got.placements, got.shape) == (placements, (5, 4))
        if mesh.get_coordinate() is not None:
            expected = distribute_tensor(numbers, mesh, placements, src_data_rank=None)
            assert torch.equal(got.to_local(), expected.to_local())


@pytest.mark.parametrize("group", [(1, 2)], indirect=True)
def test_pending_gradients_take_the_form_of_the_parameters_that_now_hold_them(group):
    mesh = init_device_mesh("cpu", (2,))
    parameters = [
        torch.nn.Parameter(torch.zeros(3)),
        torch.nn.Parameter(empty(4, 2, device_mesh=mesh, placements=[Shard(0)])),
        torch.nn.Parameter(empty(2, device_mesh=mesh, placements=[Replicate()])),
    ]
    saved = [[[torch.full((3,), rank + 1.0), torch.full((4, 2), rank + 1.0), None]] for rank in range(2)]
    waiting = UnfinishedGroup()
    waiting.counts, waiting.ranks, waiting.own = [2], saved, 1
    resumed = GradientGroup(torch.optim.SGD(parameters))
    waiting.give(0, resumed)
    assert resumed.count == 2
    # DistributedDataParallel averages at the end of the group; gradients of sharded parameters are averages already.
    assert parameters[0].grad.tolist() == [2, 2, 2]
    assert parameters[1].grad.to_local().tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert parameters[2].grad is None


def test_gradients_that_a_flush_exchanges_are_sent_by_type_and_device():
    parameters = [torch.empty(2), torch.empty(3), torch.empty(2, device="meta"), torch.empty(1, dtype=torch.half)]
    assert [[len(one) for one in piece] for piece in aggregation._pieces(parameters)] == [[2, 3], [2], [1]]


def test_a_loss_that_is_sharded_is_reported_beside_plain_tensors_of_a_device():
    class OnDevice:
        """Stands for a sharded tensor on a GPU."""

        is_cuda = True
        numel = staticmethod(lambda: 1)
        to_local = None

        def item(self):
            return 4.0

        __float__ = item

    assert metrics._hold("loss", OnDevice()) == 4.0
