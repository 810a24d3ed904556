"""Ranks where nothing is installed but PyTorch and what it requires, which NumPy is not.

These tests cost more than other ones, because they need a PyTorch that was imported without NumPy, in a process of its
own. No other test notices that a call of PyTorch needs NumPy.
"""

from __future__ import annotations

import pytest

from tests.support.decisions import searcher
from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ALONE = {"DTRAIN_TEST_ONLY_TORCH": "1"}
HIDDEN = """
    import importlib.util
    others = ("numpy", "pandas", "pyarrow", "airflow", "pytest")
    print("finds", [name for name in others if importlib.util.find_spec(name)])
"""


def run(path, folder, size, **options):
    ranks = run_ranks(path, folder, size, env=ALONE, **options)
    assert [rank.exit_code for rank in ranks] == [0] * size, "".join(rank.output for rank in ranks)
    assert {name for rank in ranks for name in rank.said(r"finds (.*)")} == {"[]"}
    return ranks


TRAINED = (
    HIDDEN
    + """
    with dtrain.init() as ctx:
        data = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(24, 1))
        model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
        model, optimizer = ctx.prepare(model, torch.optim.AdamW(model.parameters(), 0.01))
        step = ctx.restore_checkpoint()
        print("from", step)
        with ctx.distributed.local_leader_first():
            pass
        for epoch in ctx.epochs(step // 3 + 1):
            for (batch,) in ctx.loader(data, num_workers=1):
                loss = model(batch).square().mean()
                ctx.backward(loss)
                ctx.step(optimizer, clip_grad_norm=1.0)
                step += 1
                ctx.report(step, {"loss": loss})
            validation = ctx.validation_loader(data)
            found = torch.cat([batch for (batch,) in validation])
            assert ctx.gather_for_metrics(found).equal(data.tensors[0])
            ctx.report_validation(step, {"mean": found.mean()}, weight=len(found))
            ctx.save_checkpoint(step)
        print("ended", step, dtrain.parameters_sha256(model))
"""
)


@pytest.mark.nightly
def test_gangs_of_four_two_and_one_rank_train_save_and_resume(tmp_path):
    path = script(tmp_path, TRAINED)
    for count, size in enumerate((4, 2, 1)):
        ranks = run(path, tmp_path / "run", size)
        assert ranks[0].said(r"from (\d+)") == [str(3 * count)]
        ends = {rank.said(r"ended (\d+) (\w+)")[0] for rank in ranks}
        assert len(ends) == 1, "all ranks have the same weights"
        assert ends.pop()[0] == str(3 * count + 3)
        means = [event["metrics"] for event in ranks[0].events if event["kind"] == "validation"]
        assert means == [{"mean": 11.5}] * (count + 1)


def test_ranks_exchange_any_values(tmp_path):
    body = (
        HIDDEN
        + """
    from airflow_provider_dtrain.train import distributed
    distributed.PIECE_BYTES = 1000
    with dtrain.init() as ctx:
        ranks, me = ctx.distributed, ctx.rank
        values = [None, b"", (1, {2}), "x" * 5000, torch.full((3,), float("nan"), dtype=torch.bfloat16), range(3), 2.5]
        for first in range(len(values)):
            own = [values[(first + rank) % len(values)] for rank in range(ctx.world_size)]
            assert repr(ranks.allgather(own[me])) == repr(own)
            assert repr(ranks.gather(own[me])) == repr(own if me == 0 else None)
            assert repr(ranks.broadcast(own[me])) == repr(own[0])
            assert repr(ranks.allgather_local(own[me])) == repr(own)
            assert ranks.broadcast_bytes(b"y" * 1000 * first if me == 0 else None) == b"y" * 1000 * first
            assert repr(ranks.on_chief(lambda: own[0])) == repr(own[0])
        assert ranks.largest(me) == ctx.world_size - 1
        print("exchanged")
    """
    )
    assert all(rank.said("exchanged") for rank in run(script(tmp_path, body), tmp_path / "run", 3))


def test_the_searcher_ends_a_trial_at_a_rung(tmp_path):
    body = (
        HIDDEN
        + """
    with dtrain.init() as ctx:
        model = torch.nn.Linear(1, 1)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step = ctx.restore_checkpoint()
        while step < 8 and not ctx.should_stop:
            ctx.backward(model(torch.ones(1, 1)).sum())
            ctx.step(optimizer)
            step += 1
            if step % 2 == 0:
                ctx.report_validation(step, {"accuracy": 0.5})
                ctx.save_checkpoint(step)
        print("left at", step)
    """
    )
    asha = {"name": "async_halving", "metric": "accuracy", "max_length": {"batches": 8}}
    context = {"rungs": [2, 4, 8], "config": {"searcher": asha, "decision_timeout": 30, "scheduling_unit": 1}}
    with searcher(tmp_path / "run", {0: "continue", 1: "stop"}):
        ranks = run(script(tmp_path, body), tmp_path / "run", 2, context=context)
    assert [rank.said(r"left at (\d+)") for rank in ranks] == [["4"], ["4"]]


TRIAL_CLASS = (
    HIDDEN
    + """
    from airflow_provider_dtrain.train import pytorch

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context):
            self.context = context
            self.model = context.wrap_model(torch.nn.Linear(1, 1))
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.001))
            self.data = torch.utils.data.TensorDataset(torch.arange(16.0).reshape(16, 1))
        def build_training_data_loader(self):
            return pytorch.DataLoader(self.data, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)
        def build_validation_data_loader(self):
            return pytorch.DataLoader(self.data, batch_size=2)
        def train_batch(self, batch, epoch_idx, batch_idx):
            loss = self.model(batch[0]).square().mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}
        def evaluate_batch(self, batch):
            return {"error": self.model(batch[0]).square().mean()}

    with pytorch.init() as context:
        print("ended", pytorch.Trainer(Trial(context), context).fit(max_length=pytorch.Epoch(2)))
"""
)


@pytest.mark.nightly
def test_a_trial_class_is_trained_and_validated(tmp_path):
    context = {"config": {"optimizations": {"aggregation_frequency": 2, "gradient_compression": "fp16"}}}
    ranks = run(script(tmp_path, TRIAL_CLASS), tmp_path / "run", 2, context=context)
    assert ranks[0].said("ended.*error")
    assert [event["kind"] for event in ranks[0].events].count("checkpoint") >= 1


@pytest.mark.nightly
def test_a_sharded_model_is_saved_and_resumed_by_another_number_of_ranks(tmp_path):
    body = (
        HIDDEN
        + """
    from torch.distributed.fsdp import fully_shard
    with dtrain.init() as ctx:
        model = torch.nn.Linear(8, 8)
        if ctx.world_size > 1:
            fully_shard(model)
        model, optimizer = ctx.prepare(model, torch.optim.AdamW(model.parameters()))
        step = ctx.restore_checkpoint()
        for _ in range(2):
            ctx.backward(model(torch.ones(2, 8)).square().mean())
            ctx.step(optimizer)
        ctx.save_checkpoint(step + 2)
        print("ended", step + 2)
    """
    )
    path = script(tmp_path, body)
    assert [run(path, tmp_path / "run", size)[0].said(r"ended (\d+)") for size in (2, 4, 1)] == [["2"], ["4"], ["6"]]
