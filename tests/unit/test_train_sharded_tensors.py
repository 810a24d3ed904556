"""Sharded parameters and state: saved and restored by parts, or refused by their kind."""

from __future__ import annotations

from collections import deque
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train import sharded_tensors  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients  # noqa: E402
from airflow_provider_dtrain.train.prepared import unwrap, wrap  # noqa: E402


@pytest.fixture
def _group():
    """Create a process group of this process alone, which sharded tensors require."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def ctx(tmp_path, monkeypatch, request, _group):
    monkeypatch.chdir(tmp_path)
    config = getattr(request, "param", {})
    with dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=tmp_path / "kept", config=config) as ctx:
        yield ctx


#: ``fully_shard`` moved to its public place, with DTensor.
if tuple(int(digit) for digit in torch.__version__.split("+")[0].split(".")[:2]) < sharded_tensors.TORCH_NEEDED:
    pytest.skip("sharded models need a newer torch", allow_module_level=True)


def sharded_model():
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
    return fully_shard(model)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.1)


def test_a_sharded_model_is_prepared_as_it_is_saved_and_restored(ctx, tmp_path):
    model = sharded_model()
    optimizer = adam(model)
    assert ctx.prepare(model, optimizer) == (model, optimizer)
    for _ in range(2):
        ctx.backward(model(torch.ones(4, 2)).sum())
        ctx.step(optimizer)
    ctx.save_checkpoint(2)
    saved = [value.full_tensor().clone() for value in model.parameters()]
    moment = optimizer.state[model[0].weight]["exp_avg"].full_tensor().clone()
    ctx.backward(model(torch.ones(4, 2)).sum())
    ctx.step(optimizer)
    assert ctx.restore_checkpoint() == 2
    assert all(torch.equal(a.full_tensor(), b) for a, b in zip(model.parameters(), saved, strict=True))
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg"].full_tensor(), moment)
    assert [path.name for path in tmp_path.rglob("rank-*")] == ["rank-00000.safetensors"]


def test_gradients_of_an_unfinished_group_of_batches_are_restored(ctx):
    ctx._gradients._every = 4
    model = sharded_model()
    optimizer = adam(model)
    ctx.prepare(model, optimizer)
    ctx.backward(model(torch.ones(4, 2)).sum())
    ctx.step(optimizer)
    ctx.save_checkpoint(1)
    kept = model[0].weight.grad.full_tensor().clone()
    model[0].weight.grad.zero_()
    ctx._gradients._groups.clear()
    ctx._gradients.add_optimizer(optimizer)
    ctx.restore_checkpoint()
    assert torch.equal(model[0].weight.grad.full_tensor(), kept)
    assert kept.any()


def test_a_model_on_the_meta_device_is_refused_with_the_remedy(ctx):
    with torch.device("meta"):
        model = torch.nn.Linear(2, 1)
    with pytest.raises(dtrain.SetupError, match=r"got Linear with parameters on the meta device. Call model.to_empty"):
        ctx.prepare(model)
    whole = ctx.prepare(torch.nn.Linear(2, 1))
    ctx.save_checkpoint(1)
    whole.to("meta")
    with pytest.raises(dtrain.CheckpointError, match=r"weight of the model must have memory, but is on the meta"):
        ctx.restore_checkpoint()


def test_a_torch_that_is_too_old_is_named(monkeypatch, ctx):
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(dtrain.SetupError, match=r"fully_shard, DTensor\) need torch 2.6 or newer, found 2.5.1"):
        ctx.prepare(sharded_model())
    ctx.prepare(torch.nn.Linear(1, 1))


@pytest.mark.usefixtures("_group")
def test_compression_without_distributed_data_parallel_is_refused():
    gradients = Gradients(Distributed(RankEnvironment()), lambda: torch.device("cpu"), {"gradient_compression": "bf16"})
    with pytest.raises(dtrain.SetupError, match=r"gradient_compression works with DistributedDataParallel only"):
        gradients.wrap_model(sharded_model())


@pytest.mark.usefixtures("_group")
def test_a_model_that_is_distributed_already_is_not_wrapped_again():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    gradients = Gradients(Distributed(RankEnvironment()), lambda: torch.device("cpu"), {"aggregation_frequency": 2})
    assert gradients.wrap_model(model) is model
    assert not model.require_backward_grad_sync


def test_a_model_inside_fully_sharded_data_parallel_is_refused():
    class FullyShardedDataParallel(torch.nn.Module):
        """Stands in for the class of that name, which needs an accelerator."""

    model = torch.nn.Sequential(FullyShardedDataParallel())
    with pytest.raises(dtrain.SetupError, match="got Sequential with FullyShardedDataParallel parameters"):
        sharded_tensors.refuse_item(model)
    flat = torch.nn.Parameter(torch.ones(2))
    flat._is_flat_param = True
    with pytest.raises(dtrain.SetupError, match="DTensors, got Adam with Parameter parameters"):
        sharded_tensors.refuse_item(torch.optim.Adam([flat]))


@pytest.mark.parametrize("ctx", [{"checkpoint_policy": "none"}], indirect=True)
def test_without_checkpoints_a_sharded_model_is_prepared_and_left_as_it_is(ctx):
    model = sharded_model()
    optimizer = adam(model)
    assert ctx.prepare(model, optimizer) == (model, optimizer)
    before = unwrap(model)[0].weight.full_tensor().clone()
    ctx.backward(model(torch.ones(4, 2)).sum())
    ctx.step(optimizer, clip_grad_norm=1.0)
    assert not torch.equal(unwrap(model)[0].weight.full_tensor(), before)
    assert ctx.save_checkpoint(1) is None


@pytest.mark.usefixtures("_group")
def test_a_sharded_model_is_never_put_into_distributed_data_parallel():
    model = sharded_model()
    same = wrap(model, device=torch.device("cpu"), size=2, bucket_mib=25, ddp={})
    assert same is model


def test_a_script_trains_a_sharded_model_that_it_does_not_prepare(ctx):
    model = sharded_model()
    optimizer = adam(model)
    for step in range(2):
        ctx.backward(model(torch.ones(4, 2)).sum())
        ctx.step(optimizer)
        assert ctx.save_checkpoint(step + 1) is not None


def test_sharded_tensors_anywhere_in_the_state_are_saved_and_restored(ctx):
    class Average:
        def __init__(self, weights):
            self.weights = weights

        def state_dict(self):
            return {"shadow": deque([self.weights], 5), "count": torch.ones(3), "seen": {1, 2}}

        def load_state_dict(self, state):
            self.weights, self.count = state["shadow"][0], state["count"]
            assert (state["shadow"].maxlen, state["seen"]) == (5, {1, 2})

    average = Average(sharded_model()[0].weight.detach().clone())
    kept = average.weights.full_tensor().clone()
    ctx.prepare(average)
    ctx.save_checkpoint(1)
    average.weights.zero_()
    ctx.restore_checkpoint()
    assert torch.equal(average.weights.full_tensor(), kept)
    assert average.count.tolist() == [1, 1, 1]


def test_a_checkpoint_of_whole_tensors_is_restored_into_a_sharded_model(ctx, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
    ctx.prepare(model, optimizer := adam(model))
    ctx.backward(model(torch.ones(4, 2)).sum())
    ctx.step(optimizer)
    ctx.save_checkpoint(1)
    ctx.close()
    with dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=tmp_path / "kept") as later:
        sharded = sharded_model()
        later.prepare(sharded, optimizer := adam(sharded))
        assert later.restore_checkpoint() == 1
        assert torch.equal(sharded[0].weight.full_tensor(), model[0].weight)
        assert optimizer.state[sharded[0].weight]["exp_avg"].full_tensor().any()


def test_plain_models_are_not_concerned(ctx):
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    optimizer = adam(model)
    model, optimizer = ctx.prepare(model, optimizer)
    ctx.backward(model(torch.randn(4, 2)).sum())
    ctx.step(optimizer)
    assert ctx.save_checkpoint(1) is not None
    assert sharded_tensors.find_old({"a": [torch.ones(1), {"b": 1}], "c": None}) is None


def test_sharded_numbers_keep_their_type(ctx, tmp_path):
    model = sharded_model().to(torch.bfloat16)
    ctx.prepare(model)
    ctx.save_checkpoint(1)
    saved = [value.full_tensor().clone() for value in model.parameters()]
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(0.0)
    ctx.restore_checkpoint()
    assert all(torch.equal(a.full_tensor(), b) for a, b in zip(model.parameters(), saved, strict=True))
    assert '"dtype":"BF16"' in (next((tmp_path / "kept").glob("step-*")) / "tensors.json").read_text()


def averaged_model(*, shards_average):
    """Return a sharded model and the average of its weights, which was created before."""
    from torch.distributed.fsdp import fully_shard
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    if shards_average:
        fully_shard(average.module)
    return fully_shard(model), average


@pytest.mark.parametrize("how", ["prepare", "register"])
def test_the_average_of_a_sharded_model_is_saved_and_restored(ctx, how):
    model, average = averaged_model(shards_average=True)
    optimizer = adam(model)
    ctx.prepare(model, optimizer)
    if how == "prepare":
        assert ctx.prepare(average) is average
    else:
        ctx.register(average=average)
    for step in range(3):
        ctx.backward(model(torch.ones(4, 2)).sum())
        ctx.step(optimizer)
        average.update_parameters(model)
        if step == 1:
            ctx.save_checkpoint(2)
            saved = [value.full_tensor().clone() for value in average.parameters()]
    assert ctx.restore_checkpoint() == 2
    restored = [value.full_tensor() for value in average.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(saved, restored, strict=True))
    assert not torch.equal(restored[0], next(model.parameters()).full_tensor())
    assert int(average.n_averaged) == 2


@pytest.mark.parametrize("order", ["model first", "average first", "registered"])
def test_a_whole_average_of_a_sharded_model_is_refused_before_the_training(ctx, order):
    model, average = averaged_model(shards_average=False)
    other = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(2, 1))
    ctx.prepare(other)
    prepared = {"model first": (model, average), "average first": (average, model), "registered": (model,)}[order]
    if order == "registered":
        ctx.prepare(*prepared)
    give = partial(ctx.register, average=average) if order == "registered" else partial(ctx.prepare, *prepared)
    with pytest.raises(dtrain.SetupError, match=r"fully_shard\(average\.module\)"):
        give()
