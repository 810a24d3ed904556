"""Searches whose trials run as real processes on this machine: ranks without torch, one slot each."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import take_over
from airflow_provider_dtrain.engine.submission.search import plan_search
from airflow_provider_dtrain.engine.submission.submit import config_of, revive, submit
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from tests.support.cli_world import ROOT
from tests.support.engines import CODE, Engine

CARRY_S = 240.0
#: Rungs at 2, 4 and 8 batches.
SEARCHER = {
    "name": "async_halving", "metric": "quality", "smaller_is_better": False, "max_trials": 8, "num_rungs": 3,
    "divisor": 2, "max_length": {"batches": 8},
}  # fmt: skip
SPACE = {"quality": {"type": "double", "minval": 0.0, "maxval": 1.0}}


def search_config(last: int = 8, *, pause_s: float = 0.05, variables: Mapping[str, str] | None = None,
                  searcher: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "name": "rungs", "entrypoint": f"python rungs.py {last} {pause_s}", "model_dir": "code", "max_restarts": 1,
        # Logs show what the variables are compared with.
        "environment": {
            "variables": {"PYTHONDONTWRITEBYTECODE": "1", **(variables or {})},
            "public_variables": [*(variables or {})],
        },
        "hyperparameters": SPACE, "searcher": {**SEARCHER, **(searcher or {})},
        "reproducibility": {"experiment_seed": 7}, "resources": {"slots_per_trial": 1}, **more,
    }  # fmt: skip


class Search:
    """The trials of one plan."""

    def __init__(self, engine: Engine, document: dict[str, Any], *, run_id: str = "search") -> None:
        self.engine, self.hook, self.run_id = engine, engine.hook, run_id
        key = TrialKey(dag_id="dag", run_id=run_id, task_id="plan")
        self.specs = plan_search(self.hook, key, document, None, CODE)
        self.search_id = int(self.specs[0]["search_id"])

    def submit(self, number: int, quality: float | None = None) -> Ticket:
        """Submit a trial with the given quality, otherwise with the planned one."""
        spec = self.specs[number]
        if quality is not None:
            spec = {**spec, "hparams": {"quality": quality}}
        key = TrialKey(dag_id="dag", run_id=self.run_id, task_id="trial", map_index=number)
        stored = config_of(self.hook, None, None, CODE, trial=spec)
        ticket = submit(self.hook, stored, key=key, folder=CODE, trial=spec)
        revive(self.hook.store, ticket)
        return ticket

    async def run(self, number: int, quality: float | None = None) -> tuple[Any, Ticket]:
        """Submit a trial, follow it to its end, and return outcome and ticket."""
        ticket = self.submit(number, quality)
        return await self.carry(ticket), ticket

    async def carry(self, ticket: Ticket) -> Any:
        """Take a trial over and follow it to its end. Several trials can be followed concurrently."""
        log = TaskLog(logging.getLogger("engine"), 10**6)
        runtime = await take_over(self.hook, ticket.trial_id, log, watcher="test")
        outcome = await asyncio.wait_for(AttemptRunner(runtime).run(BackgroundRecovery(runtime.hook)), CARRY_S)
        assert outcome is not None
        return outcome

    def told(self, ticket: Ticket) -> list[tuple[int, str]]:
        """Return (rung, decision) of each entry of a trial."""
        return [(entry.rung, str(entry.decision)) for entry in self.hook.store.searches.decisions(ticket.trial_id)]


async def dies_at(hook: DtrainHook, ticket: Ticket, point: str) -> None:
    """Let a follower in a separate process follow a trial up to a point at which the process exits at once."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FOLLOWER_FAULT": point}
    arguments = [hook.settings.sql_alchemy_conn, str(hook.settings.checkpoint_dir), str(ticket.trial_id)]
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "tests.support.dying_follower", *arguments], env=environment,
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 9, done.stdout + done.stderr
