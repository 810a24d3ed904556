"""Timings of real ranks: what each part of a batch takes, and the switch that turns them off."""

from __future__ import annotations

import pytest

from tests.support.event_lines import lines_of
from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BODY = """
    import time
    class Slow(torch.utils.data.Dataset):
        def __len__(self): return 40
        def __getitem__(self, index):
            time.sleep(0.001)
            return torch.full((4,), float(index)), torch.tensor([1.0])
    with dtrain.init() as ctx:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        model, optimizer, schedule = ctx.prepare(model, optimizer, schedule)
        step = 0
        for epoch in ctx.epochs(2):
            for batch in ctx.loader(Slow()):
                inputs, targets = ctx.to_device(batch)
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                ctx.backward(loss)
                ctx.step(optimizer)
                step += 1
                ctx.report(step, {"loss": loss})
            ctx.report_validation(step, {"accuracy": 0.5})
"""
PER_BATCH = {"dataloader_next", "to_device", "train_batch", "backward", "step_optimizer", "step_lr_schedulers"}


def summed(events):
    found = {}
    for event in events:
        for name, sums in event["names"].items() if event["kind"] == "timings" else ():
            count, total = found.get(name, (0, 0.0))
            found[name] = (count + sums["count"], total + sums["total_s"])
    return found


def test_every_part_of_every_batch_is_measured_on_every_rank(tmp_path):
    ranks = run_ranks(script(tmp_path, BODY), tmp_path / "run", 2)
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    for rank in ranks:
        found = summed(rank.events)
        assert {name: found[name][0] for name in PER_BATCH} == dict.fromkeys(PER_BATCH, 10)
        assert found["dataloader_next"][1] >= 0.038, "4 samples of 1 ms in each of 10 batches"
        parts = sum(found[name][1] for name in ("to_device", "backward", "step_optimizer"))
        assert found["train_batch"][1] >= parts
        assert found["gradient_exchange"][0] >= 1
        assert 0 < found["gradient_exchange"][1] < 60
        assert found["reduce_metrics"][0] >= 4, "two epochs begin, two validations"
        lines = lines_of(rank.folder / "samples")
        values = {name: [v for line in lines for v in line["us"].get(name, ())] for name in PER_BATCH}
        assert {name: len(found) for name, found in values.items()} == dict.fromkeys(PER_BATCH, 10)
        assert all(type(value) is int and value >= 0 for found in values.values() for value in found)


@pytest.mark.nightly("profiling1")
@pytest.mark.parametrize("profiling", [{"enabled": False}, {"timings": False}])
def test_profiling_switches_timings_off(tmp_path, profiling):
    (rank,) = run_ranks(script(tmp_path, BODY), tmp_path / "run", 1, context={"config": {"profiling": profiling}})
    assert rank.exit_code == 0, rank.output
    assert not (rank.folder / "samples").exists()
    assert "timings" not in {event["kind"] for event in rank.events}
    assert {"report", "validation", "result"} <= {event["kind"] for event in rank.events}


CALLBACKS = """
    import time
    from airflow_provider_dtrain.train import pytorch
    from tests.support.small_trial import Small
    class Slow(pytorch.PyTorchCallback):
        def on_validation_end(self, metrics): time.sleep(0.02)
        def on_training_epoch_start(self, epoch_idx): pass
        def on_checkpoint_save_start(self, checkpoint): time.sleep(0.02)
        def on_trial_shutdown(self): time.sleep(0.02)
    class Trial(Small):
        def build_callbacks(self): return {"slow": Slow()}
    with pytorch.init(hparams={"lr": 0.01}) as context:
        pytorch.Trainer(Trial(context), context).fit(max_length=pytorch.Epoch(2), validation_period=pytorch.Epoch(1),
                                              checkpoint_policy="all")
"""


def test_every_hook_of_a_callback_is_measured_on_every_rank(tmp_path):
    ranks = run_ranks(script(tmp_path, CALLBACKS), tmp_path / "run", 2)
    assert [rank.exit_code for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
    of_both = {"on_validation_end": 2, "on_training_epoch_start": 2, "on_trial_shutdown": 1}
    for rank, hooks in zip(ranks, ({**of_both, "on_checkpoint_save_start": 2}, of_both), strict=True):
        found = {name: one for name, one in summed(rank.events).items() if name.startswith("callbacks.")}
        assert {name: count for name, (count, _) in found.items()} == {
            f"callbacks.Slow.{hook}": count for hook, count in hooks.items()
        }
        assert found["callbacks.Slow.on_validation_end"][1] >= 0.04
        assert found["callbacks.Slow.on_trial_shutdown"][1] >= 0.02, "after the last batch"
        lines = [line for line in lines_of(rank.folder / "timings") if line["kind"] == "timings"]
        assert {name for line in lines for name in line["us"]} >= set(found)
