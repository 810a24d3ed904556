"""Failures of a batch inference that belong to a shard. Real ranks on this machine report the shards."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import experiment
from airflow_provider_dtrain.core.lifecycle import after_failure
from airflow_provider_dtrain.engine.attempt import job
from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.store.records.trials import TrialView
from tests.support.engines import Engine, held


@pytest.fixture(autouse=True)
def reporting_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ranks run a script that only reports shards, on a host without the libraries of the inputs."""
    monkeypatch.setattr(after_failure, "BACK_OFF_FIRST_S", 0.1)
    monkeypatch.setattr(experiment, "INFERENCE", ("python", "shards.py"))
    monkeypatch.setattr(job, "inference_modules", lambda config: ())


async def infer(
    engine: Engine, folder: Path, ends: dict[str, str], *, on_bad_shard: str = "fail", slots: int = 2, **data: Any
) -> tuple[Outcome, TrialView]:
    (folder / "ledger").mkdir()
    document = {
        "inference": {"processor": "m:P", "outputs": {"path": "/out"}, "on_bad_shard": on_bad_shard},
        "model_dir": "code",
        "max_restarts": 0,
        "resources": {"slots_per_trial": slots},
        "data": {"total": 5, "ends": ends, "ledger": str(folder / "ledger"), **data},
    }
    ticket = engine.submit(document)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert held(engine) == []
    return outcome, engine.hook.store.trials.get(ticket.trial_id)


@pytest.mark.nightly
async def test_a_rank_that_is_killed_once_in_a_shard_costs_no_restart(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    outcome, trial = await infer(engine, tmp_path, {"3": "kill once"})
    assert (outcome.state, trial.attempts, trial.restarts) == ("completed", 2, 0)
    assert 'failures {"3": 1}' in caplog.text
    assert "It was processing shard 3 (part-3.parquet rows 0-9)." in caplog.text
    assert "does not count as a restart" in caplog.text
    first = engine.hook.store.attempts.of_trial(trial.trial_id)[0]
    assert first.failure is not None
    assert first.failure["shard"]["index"] == 3


@pytest.mark.nightly
async def test_the_third_death_in_a_shard_ends_the_run_and_names_its_rows(engine: Engine, tmp_path: Path) -> None:
    outcome, trial = await infer(engine, tmp_path, {"3": "kill"})
    assert (outcome.state, trial.attempts, trial.restarts) == ("errored", 3, 0)
    assert outcome.failure is not None
    assert outcome.failure.error == "BadShardError"
    assert outcome.failure.cause.startswith("Shard 3 (part-3.parquet rows 0-9) failed 3 times and ends the run.")
    assert "inference.on_bad_shard: skip" in outcome.failure.cause


@pytest.mark.nightly
async def test_a_shard_that_is_set_aside_lets_the_run_complete(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    outcome, trial = await infer(engine, tmp_path, {"1": "kill"}, on_bad_shard="skip")
    assert (outcome.state, trial.attempts, trial.restarts) == ("completed", 4, 0)
    assert 'failures {"1": 3}' in caplog.text


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("give up", "Shard 0 (part-0.parquet rows 0-9) failed 3 times in rank 0 on host 'local': ValueError: poison"),
        ("unreadable", "Shard 0 (part-0.parquet rows 0-9) failed in rank 0 on host 'local': ValueError: poison"),
        ("nothing left", "The batch inference ended in rank 0 on host 'local': exit code 66: dtrain: nothing left"),
    ],
)
async def test_a_rank_that_gives_a_shard_up_ends_the_run_at_once(
    engine: Engine, tmp_path: Path, end: str, words: str
) -> None:
    outcome, trial = await infer(engine, tmp_path, {"0": end}, slots=1)
    assert (outcome.state, trial.attempts) == ("errored", 1)
    assert outcome.failure is not None
    assert outcome.failure.error == "BadShardError"
    assert outcome.failure.cause == words


@pytest.mark.nightly
async def test_a_failure_outside_of_shards_counts_as_usual(engine: Engine, tmp_path: Path) -> None:
    outcome, trial = await infer(engine, tmp_path, {}, slots=1, fails=True)
    assert (outcome.state, trial.attempts) == ("errored", 1)
    assert outcome.failure is not None
    assert outcome.failure.error == "RankFailedError"
