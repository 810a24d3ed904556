"""Sharded parameters and state: refused by name, since checkpoints hold rank 0's state only."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train import sharded_tensors  # noqa: E402
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


def sharded_model():
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
    return fully_shard(model)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.1)


def test_sharded_models_and_optimizers_are_refused_before_training(ctx):
    model = sharded_model()
    for item in (model, adam(model)):
        with pytest.raises(
            dtrain.SetupError, match=r"takes objects with whole tensors, got \w+ with DTensor"
        ) as raised:
            ctx.prepare(item)
        assert "torch.distributed.checkpoint" in str(raised.value)
        assert "checkpoint_policy: none" in str(raised.value)
    assert not len(ctx._prepared)


def test_a_model_inside_fully_sharded_data_parallel_is_refused():
    class FullyShardedDataParallel(torch.nn.Module):
        """Stands in for the class of that name, which needs an accelerator."""

    model = torch.nn.Sequential(FullyShardedDataParallel())
    with pytest.raises(dtrain.SetupError, match="got Sequential with FullyShardedDataParallel parameters"):
        sharded_tensors.refuse_item(model)
    flat = torch.nn.Parameter(torch.ones(2))
    flat._is_flat_param = True
    with pytest.raises(dtrain.SetupError, match="got Adam with Parameter parameters"):
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
    same = wrap(model, device=torch.device("cpu"), size=2, bucket_mib=25, find_unused_parameters=False)
    assert same is model


def test_a_script_trains_a_sharded_model_that_it_does_not_prepare(ctx):
    model = sharded_model()
    optimizer = adam(model)
    for step in range(2):
        ctx.backward(model(torch.ones(4, 2)).sum())
        ctx.step(optimizer)
        assert ctx.save_checkpoint(step + 1) is not None


def test_a_model_that_was_sharded_after_it_was_prepared_is_not_saved(ctx):
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(2, 1)
    ctx.prepare(model)
    fully_shard(model)
    with pytest.raises(dtrain.CheckpointError, match=r"save_checkpoint takes whole tensors, got \w+ with DTensor"):
        ctx.save_checkpoint(1)


def test_a_sharded_tensor_anywhere_in_the_state_is_refused_with_its_place(ctx, tmp_path):
    class Average:
        def __init__(self, weights):
            self.weights = weights

        def state_dict(self):
            return {"shadow": [self.weights]}

        def load_state_dict(self, state):
            self.weights = state["shadow"][0]

    ctx.prepare(Average(sharded_model()[0].weight.detach()))
    with pytest.raises(
        dtrain.CheckpointError, match=r"got a DTensor at state.pt.others.0.shadow.0. Checkpoints of ctx"
    ):
        ctx.save_checkpoint(1)
    assert not list(tmp_path.rglob("state.pt"))


def test_plain_models_are_not_concerned(ctx):
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    optimizer = adam(model)
    model, optimizer = ctx.prepare(model, optimizer)
    ctx.backward(model(torch.randn(4, 2)).sum())
    ctx.step(optimizer)
    assert ctx.save_checkpoint(1) is not None
    assert sharded_tensors.find({"a": [torch.ones(1), {"b": 1}], "c": None}) is None
