"""Gangs that run as real processes on this machine, in the store of a world.

Use it with ``pytest_plugins = ["tests.support.gangs"]``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Runtime, take_over
from airflow_provider_dtrain.engine.submission.submit import render, submit
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from tests.support.cli_world import ROOT, World

JOBS = ROOT / "tests" / "jobs"


class Gangs:
    """Trials on host ``local``, run as a task would run them."""

    def __init__(self, world: World, **options: Any) -> None:
        home = Path(world.environment["AIRFLOW_HOME"])
        chosen = dataclasses.replace(
            settings(), sql_alchemy_conn=f"sqlite:///{home}/dtrain.db", checkpoint_dir=home / "kept", kill_grace_s=2.0,
            **options,
        )  # fmt: skip
        self.hook = DtrainHook(chosen)
        self.followers: dict[int, tuple[asyncio.AbstractEventLoop, Runtime]] = {}

    def submit(self, what: str, slots: int) -> Ticket:
        document = {
            "name": "ranks", "entrypoint": f"python ranks.py {what}", "model_dir": "code", "max_restarts": 0,
            "resources": {"slots_per_trial": slots, "pool": "local"},
        }  # fmt: skip
        key = TrialKey(dag_id="dag", run_id=f"run {what}", task_id="train")
        return submit(self.hook, render(self.hook, document, None, JOBS), key=key, folder=JOBS)

    def carry(self, ticket: Ticket) -> threading.Thread:
        async def run() -> None:
            log = TaskLog(logging.getLogger("cli"), 10**6)
            runtime = await take_over(self.hook, ticket.trial_id, log, watcher="test")
            self.followers[ticket.trial_id] = asyncio.get_running_loop(), runtime
            await asyncio.wait_for(AttemptRunner(runtime).run(BackgroundRecovery(runtime.hook)), 120)

        thread = threading.Thread(target=asyncio.run, args=(run(),))
        thread.start()
        return thread

    def leave(self, ticket: Ticket) -> None:
        """Let the follower hand the trial over, without a successor."""
        loop, runtime = self.followers[ticket.trial_id]
        loop.call_soon_threadsafe(runtime.hand_over)


@pytest.fixture(scope="module")
def gangs(world: World) -> Iterator[Gangs]:
    world.add_local_host()
    gangs = Gangs(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(world.folder))
        yield gangs
    gangs.hook.links.close_all()


def until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found
