"""Ranks that are slow for a cause, and healthy ones, named by the follower of a real gang."""

from __future__ import annotations

import argparse
import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.terminal.trials import describe
from testbed.cpu_quota import CpuQuota, controller_folder
from tests.support.engines import Engine

FOLDER = Path(__file__).parents[2] / "testbed"
AFTER_S = 20

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.nightly]


def job(kind: str, seconds: float, folder: object = "") -> dict[str, Any]:
    return {
        "name": "stragglers",
        "entrypoint": f"python straggler_train.py {kind} {seconds} '{folder}'",
        "model_dir": "straggler_job",
        "max_restarts": 0,
        "resources": {"slots_per_trial": 2},
        "hyperparameters": {"global_batch_size": 2},
        "profiling": {"straggler_after": AFTER_S, "straggler_share": 1.5},
        "environment": {"variables": {"OMP_NUM_THREADS": "1"}},
    }


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        pytest.param(
            "quota", "cpu_quota",
            marks=pytest.mark.skipif(controller_folder() is None, reason="no cgroups with a CPU quota"),
        ),
        ("loader", "loader"),
    ],
)  # fmt: skip
async def test_a_slow_rank_is_named_with_its_cause(
    engine: Engine, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], kind: str, cause: str
) -> None:
    pytest.importorskip("torch")
    caplog.set_level(logging.INFO)
    with contextlib.ExitStack() as stack:
        quota = stack.enter_context(CpuQuota(0.04)) if kind == "quota" else None
        ticket = engine.submit(job(kind, 3 * AFTER_S, quota.folder if quota is not None else ""), folder=FOLDER)
        outcome = await engine.carry(ticket, most_s=300)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    (found,) = engine.hook.store.stragglers.of_trial(ticket.trial_id)
    assert (found.rank, found.host, found.cause) == (1, "local", cause)
    assert found.ratio > 1.5
    assert 0 < found.cost <= 1
    lines = [line for line in caplog.messages if line.startswith("Rank 1 on local takes ")]
    assert len(lines) == 1, "it is named once"
    assert found.advice in lines[0]
    timeline = engine.hook.store.timeline.of_trial(ticket.trial_id)
    assert [entry.detail["cause"] for entry in timeline if entry.kind == "slow_rank"] == [cause]
    capsys.readouterr()
    describe(argparse.Namespace(trial_id=ticket.trial_id, output="table"), StoreSource(engine.hook.store))
    assert "Rank 1 on local takes" in capsys.readouterr().out


async def test_healthy_ranks_are_not_named(engine: Engine) -> None:
    pytest.importorskip("torch")
    ticket = engine.submit(job("healthy", 3 * AFTER_S), folder=FOLDER)
    outcome = await engine.carry(ticket, most_s=300)
    assert outcome is not None
    assert outcome.state == "completed", outcome.failure
    assert engine.hook.store.stragglers.of_trial(ticket.trial_id) == []
    step_times = engine.hook.store.telemetry.step_times(ticket.trial_id)
    assert len([one for one in step_times.ranks if one.median_busy_s is not None]) == 2
