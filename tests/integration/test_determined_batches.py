"""Batch inference under the names of Determined: each batch once, over pauses, crashes and other numbers of ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.ranks import run_ranks, script

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PREDICT = """
    import os
    from pathlib import Path
    from airflow_provider_dtrain.train import determined as det
    from airflow_provider_dtrain.train.determined.pytorch.experimental import TorchBatchProcessor, torch_batch_process

    class Predictor(TorchBatchProcessor):
        def __init__(self, context):
            self.context = context
            self.model = context.prepare_model_for_inference(torch.nn.Identity())
            self.seen = context.wrap_reducer(sum, name="samples")
            assert not self.model.training
            assert context.get_hparams()["global_batch_size"] == 8
        def process_batch(self, batch, batch_idx):
            rank, size = self.context.get_distributed_rank(), self.context.get_distributed_size()
            batch = self.model(self.context.to_device(batch))
            print("did", rank, batch_idx, batch.tolist(), flush=True)
            with self.context.upload_path() as path:
                (path / "deep").mkdir()
                (path / "deep" / f"{batch_idx}.txt").write_text(",".join(map(str, batch.tolist())))
            self.seen.update(len(batch))
            if batch_idx == CRASH_AT and rank == size - 1:
                os._exit(9)
            if batch_idx == PAUSE_AT:
                Path("stop_requested").touch()
        def on_checkpoint_start(self):
            print("saves", flush=True)
        def on_finish(self):
            print("finished", flush=True)

    torch_batch_process(
        Predictor, list(range(COUNT)), batch_size=3, max_batches=LIMIT, checkpoint_interval=2,
        dataloader_kwargs={"num_workers": WORKERS, "drop_last": False},
    )
"""


def attempt(tmp_path, number, size, *, crash=-1, pause=-1, count=50, limit=None, workers=0, latest=None):
    text = PREDICT.replace("CRASH_AT", str(crash)).replace("PAUSE_AT", str(pause)).replace("COUNT", str(count))
    text = text.replace("LIMIT", str(limit)).replace("WORKERS", str(workers))
    context = {"config": {"scheduling_unit": 1}, "latest_checkpoint": latest and str(latest)}
    return run_ranks(script(tmp_path, text), tmp_path / f"run{number}", size, context=context)


def newest(tmp_path, number):
    saved = sorted((tmp_path / f"run{number}" / "checkpoints").glob("step-*"))
    return saved[-1] if saved else None


def results(checkpoint: Path):
    """Return (rank, index) -> samples of each file of a checkpoint."""
    found = {}
    for path in checkpoint.rglob("*.txt"):
        rank = int(re.search(r"rank_(\d+)/deep/\d+\.txt$", path.as_posix())[1])
        found[rank, int(path.stem)] = [int(sample) for sample in path.read_text().split(",")]
    return found


def batches(count):
    return sorted(list(range(count))[start : start + 3] for start in range(0, count, 3))


@pytest.mark.parametrize(("size", "workers"), [(1, 0), (2, 1), (3, 0)])
def test_batches_are_dealt_as_by_determined_and_each_is_a_result_once(tmp_path, size, workers):
    ranks = attempt(tmp_path, 0, size, workers=workers)
    assert [rank.exit_code for rank in ranks] == [0] * size, ranks[0].output
    dealt = batches(50)
    expected = {(index % size, index // size): batch for index, batch in enumerate(dealt)}
    assert results(newest(tmp_path, 0)) == expected
    assert all(rank.said("(finished)") for rank in ranks)
    (validation,) = [event for event in ranks[0].events if event["kind"] == "validation"]
    assert validation["metrics"] == {"samples": 50}


@pytest.mark.parametrize(
    ("sizes", "crash", "pause"),
    [((2, 2), 5, -1), ((2, 1), 5, -1), ((1, 3), 6, -1), ((2, 2), -1, 4), ((3, 2), -1, 2), ((2, 1), 1, -1)],
)
def test_a_crash_or_a_pause_loses_no_batch_and_repeats_no_result_with_another_number_of_ranks(
    tmp_path, sizes, crash, pause
):
    first = attempt(tmp_path, 0, sizes[0], crash=crash, pause=pause)
    assert not any(rank.said("(finished)") for rank in first)
    latest = newest(tmp_path, 0)
    assert (latest is None) == (crash == 1), "the crash was before the first checkpoint"
    second = attempt(tmp_path, 1, sizes[1], latest=latest)
    assert [rank.exit_code for rank in second] == [0] * sizes[1], second[0].output
    found = results(newest(tmp_path, 1))
    assert sorted(found.values()) == batches(50)
    if latest is not None:
        kept = results(latest)
        assert {key: found[key] for key in kept} == kept
        done = [json.loads(text) for rank in second for text in rank.said(r"did \d+ \d+ (\[.*\])")]
        assert sorted(done + list(kept.values())) == batches(50), "what a checkpoint has is not processed again"
        assert "Reducers do not see batches of earlier attempts" in second[0].output


def test_a_limit_is_for_each_rank_and_stays_over_a_pause(tmp_path):
    attempt(tmp_path, 0, 2, pause=1, limit=5)
    (rank,) = attempt(tmp_path, 1, 1, limit=5, latest=newest(tmp_path, 0))
    assert rank.exit_code == 0, rank.output
    assert sorted(results(newest(tmp_path, 1)).values()) == batches(50)[:10]


def test_a_finished_inference_that_runs_again_processes_nothing(tmp_path):
    attempt(tmp_path, 0, 1, count=7)
    (rank,) = attempt(tmp_path, 1, 1, count=7, latest=newest(tmp_path, 0))
    assert rank.exit_code == 0, rank.output
    assert (rank.said("(did)"), rank.said("(finished)")) == ([], ["finished"])


def test_other_data_after_a_checkpoint_is_refused(tmp_path):
    attempt(tmp_path, 0, 1, count=20)
    (rank,) = attempt(tmp_path, 1, 1, count=50, latest=newest(tmp_path, 0))
    assert rank.exit_code == 1
    assert "The data set has 17 batches, but it had 7 at the checkpoint" in rank.error["message"]
