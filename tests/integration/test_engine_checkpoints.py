"""Checkpoints end to end on this machine, without a scheduler: restarts, buckets, warm starts, removal."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.submission.submit import render, submit
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from tests.support.bucket import ACCESS_KEY, BUCKET, SECRET_KEY, s3_server
from tests.support.engines import CODE, Engine

pytest.importorskip("torch")
pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.slow]


def config(until: int, *, fail_at: int = -1, **more: Any) -> dict[str, Any]:
    return {
        "name": "checkpoints",
        "entrypoint": f"python resume.py {until} {fail_at}",
        "model_dir": "checkpoints",
        "max_restarts": 1,
        "resources": {"slots_per_trial": 1},
        "hyperparameters": {"fail": fail_at >= 0, "global_batch_size": 8},
        "searcher": {"name": "single", "metric": "loss", "smaller_is_better": True, **more.pop("searcher", {})},
        "reproducibility": {"experiment_seed": 7},
        "environment": {"variables": {"OMP_NUM_THREADS": "1"}},
        **more,
    }


def submitted(engine: Engine, document: dict[str, Any], *, run_id: str, task_id: str = "train") -> Ticket:
    key = TrialKey(dag_id="dag", run_id=run_id, task_id=task_id)
    return submit(engine.hook, render(engine.hook, document, None, CODE), key=key, folder=CODE)


def said(caplog: pytest.LogCaptureFixture, pattern: str) -> list[Any]:
    return re.findall(rf"\[rank 0\] {pattern}", caplog.text)


async def carried(engine: Engine, ticket: Ticket) -> dict[str, Any]:
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert outcome.result is not None
    return outcome.result


async def test_a_restart_goes_on_from_the_latest_checkpoint_and_ends_as_an_unbroken_run(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    await carried(engine, submitted(engine, config(8), run_id="whole"))
    unbroken = said(caplog, r"end 8 (\w+)")
    caplog.clear()
    ticket = submitted(engine, config(8, fail_at=5), run_id="broken")
    result = await carried(engine, ticket)
    assert [int(step) for step, _ in said(caplog, r"start (\d+) (\w+)")] == [0, 4]
    assert said(caplog, r"end 8 (\w+)") == unbroken != []
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 1)
    # Best is step 4 of the first attempt, latest is step 8 of the second; both have a whole copy here.
    left = engine.hook.store.checkpoints.of_trial(ticket.trial_id)
    assert [(c.attempt, c.step) for c in left] == [(1, 4), (2, 8)]
    assert result["checkpoint"] == left[0].copy_url
    assert json.loads((Path(left[0].copy_url or "") / "metadata.json").read_text())["step"] == 4


async def test_a_restart_of_ranks_that_torchrun_starts_goes_on_from_the_latest_checkpoint(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    document = config(8, fail_at=5)
    document["entrypoint"] = document["entrypoint"].replace("python ", "torchrun ", 1)
    ticket = submitted(engine, document, run_id="torchrun")
    await carried(engine, ticket)
    assert [int(step) for step, _ in said(caplog, r"start (\d+) (\w+)")] == [0, 4]
    assert said(caplog, r"end 8 (\w+)") != []
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 1)


async def test_a_trial_keeps_its_checkpoints_in_a_bucket_reached_by_an_airflow_connection(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    pytest.importorskip("s3fs")
    caplog.set_level(logging.INFO)
    with s3_server() as bucket:
        connection = {
            "conn_type": "aws", "login": ACCESS_KEY, "password": SECRET_KEY,
            "extra": {"endpoint_url": bucket.endpoint_url},
        }  # fmt: skip
        monkeypatch.setenv("AIRFLOW_CONN_BUCKET_TEST", json.dumps(connection))
        storage = {"type": "s3", "bucket": BUCKET, "prefix": "runs", "conn_id": "bucket_test"}
        ticket = submitted(engine, config(8, fail_at=5, checkpoint_storage=storage), run_id="bucket")
        result = await carried(engine, ticket)
        root = f"s3://{BUCKET}/runs/experiment-{ticket.experiment_id}/trial-{ticket.trial_id}"
        started = said(caplog, r"start (\d+) (\w+)")
        assert [int(step) for step, _ in started] == [0, 4]
        assert said(caplog, r"secrets (\w+) (\w+)") == [("False", "None")] * 2
        assert result["checkpoint"] == f"{root}/step-00000004"
        assert {key.split("/")[-2] for key in bucket.objects()} == {"step-00000004", "step-00000008"}
        assert [c.path for c in engine.hook.store.checkpoints.of_trial(ticket.trial_id)] == [
            f"{root}/step-00000004", f"{root}/step-00000008",
        ]  # fmt: skip
        assert SECRET_KEY not in caplog.text
        plans = json.dumps(engine.hook.store.attempts.get(ticket.attempt_id).plan)
        assert SECRET_KEY not in plans

        # Another trial starts from its weights, by URL.
        caplog.clear()
        warm = config(2, checkpoint_storage=storage, searcher={"source_checkpoint": result["checkpoint"]})
        await carried(engine, submitted(engine, warm, run_id="warm"))
        # Not the fresh weights that every trial with this seed begins with.
        fresh = [digest for step, digest in started if step == "0"][0]
        assert [(step, digest != fresh) for step, digest in said(caplog, r"start (\d+) (\w+)")] == [("0", True)]
        nowhere = {"source_checkpoint": f"s3://{BUCKET}/runs/nothing/step-00000001"}
        with pytest.raises(ConfigError, match=r"source_checkpoint.*no checkpoint at s3://"):
            submitted(engine, config(2, checkpoint_storage=storage, searcher=nowhere), run_id="nowhere")


async def test_weights_of_another_trial_are_where_a_trial_starts(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    first = submitted(engine, config(4), run_id="first")
    result = await carried(engine, first)
    trained = said(caplog, r"end 4 (\w{16})")
    for number, named in enumerate((f"trial:{first.trial_id}", f"trial:{first.trial_id}:4", result["checkpoint"])):
        caplog.clear()
        ticket = submitted(engine, config(2, searcher={"source_checkpoint": named}), run_id=f"second{number}")
        await carried(engine, ticket)
        assert said(caplog, r"start (\d+) (\w+)") == [("0", trained[0])]
    for named, words in (
        ("trial:999", "no trial 999"),
        (f"trial:{first.trial_id}:77", "no checkpoint '77'"),
        ("/nowhere/step-00000001", "no checkpoint at /nowhere"),
        ("latest", "trial:ID"),
    ):
        with pytest.raises(ConfigError, match=words):
            submitted(engine, config(2, searcher={"source_checkpoint": named}), run_id=f"bad-{named}")


async def test_what_the_whole_experiment_does_not_keep_is_removed_on_the_host_and_here(
    engine: Engine, tmp_path: Path
) -> None:  # fmt: skip
    kept = {"save_experiment_best": 1, "save_trial_best": 0, "save_trial_latest": 0}
    first = submitted(engine, config(4, checkpoint_storage=kept), run_id="same", task_id="a")
    result = await carried(engine, first)
    # Losses: 0.2 at step 2, 0.0 at step 4.
    assert [c.step for c in engine.hook.store.checkpoints.of_trial(first.trial_id)] == [4]
    second = submitted(engine, config(6, checkpoint_storage=kept), run_id="same", task_id="b")
    later = await carried(engine, second)
    assert first.experiment_id == second.experiment_id
    assert engine.hook.store.checkpoints.of_trial(first.trial_id) == []
    left = engine.hook.store.checkpoints.of_trial(second.trial_id)
    assert [c.step for c in left] == [4]
    assert not Path(result["checkpoint"]).exists()
    assert Path(later["checkpoint"]).is_dir()
    on_host = [path.parent.name for path in (tmp_path / "state").rglob("metadata.json")]
    assert on_host == ["step-00000004"]
    every = engine.hook.store.checkpoints.of_trial(second.trial_id, removed=True)
    assert [c.step for c in every if c.removed_at is not None] == [2, 6]


async def test_checkpoints_on_shared_storage_are_resumed_and_removed_there(
    engine: Engine, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    shared = tmp_path / "shared"
    shared.mkdir()
    storage = {"type": "shared_fs", "host_path": str(shared), "save_trial_best": 0}
    ticket = submitted(engine, config(6, fail_at=3, checkpoint_storage=storage), run_id="shared")
    result = await carried(engine, ticket)
    assert [int(step) for step, _ in said(caplog, r"start (\d+) (\w+)")] == [0, 2]
    folder = shared / f"experiment-{ticket.experiment_id}" / f"trial-{ticket.trial_id}"
    assert [path.name for path in folder.iterdir()] == ["step-00000006"]
    assert result["checkpoint"] == str(folder / "step-00000006")
