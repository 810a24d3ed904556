"""Trials of counting.py on an engine: their configuration, their ranks, and waits for their progress."""

from __future__ import annotations

import asyncio
import contextlib
import re
from datetime import timedelta
from typing import Any

import psutil
import pytest

from airflow_provider_dtrain.store.database.tables import allocations, attempts
from airflow_provider_dtrain.store.records.trials import AttemptView, Ticket
from tests.support.engines import Engine

DEADLINE_S = 120.0


def config(way: str, last: int = 60, *, pause_s: float = 0.1, **more: Any) -> dict[str, Any]:
    return {
        "name": "counting",
        "entrypoint": f"python counting.py {way} {last} {pause_s}",
        "model_dir": "code",
        "max_restarts": 0,
        "environment": {"variables": {"PYTHONDONTWRITEBYTECODE": "1"}},
        "resources": {"slots_per_trial": 2},
        **more,
    }


async def running(engine: Engine, ticket: Ticket, carrying: asyncio.Future[Any], *, number: int = 1) -> int:
    """Wait until the trial's attempt of this number runs and has saved a checkpoint, and return its id."""

    async def wait() -> int:
        while True:
            assert not carrying.done(), carrying.result()
            view = engine.hook.store.attempts.get(engine.hook.store.trials.get(ticket.trial_id).attempt_id)
            kinds = {event.kind for event in engine.hook.store.events.of_attempt(view.attempt_id)}
            if view.number == number and view.state == "running" and "checkpoint" in kinds:
                return view.attempt_id
            await asyncio.sleep(0.05)

    return await asyncio.wait_for(wait(), DEADLINE_S)


async def until(condition: Any, carrying: asyncio.Future[Any]) -> None:
    async def wait() -> None:
        while not condition():
            assert not carrying.done(), carrying.result()
            await asyncio.sleep(0.05)

    await asyncio.wait_for(wait(), DEADLINE_S)


def preempt(engine: Engine, ticket: Ticket) -> None:
    """Preempt a trial's gang, as a scheduling pass does."""
    store = engine.hook.store
    allocation_id = store.attempts.get(store.trials.get(ticket.trial_id).attempt_id).allocation_id
    values = {"preempted_at": store.db.now(), "preempted_for": None}
    with store.db.engine.begin() as conn:
        conn.execute(allocations.update().where(allocations.c.id == allocation_id).values(**values))


def ranks_of(engine: Engine) -> list[psutil.Process]:
    """Return the live processes of this test's runs."""
    home = str(engine.hook.settings.checkpoint_dir.parent)
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if "counting.py" in (process.info["cmdline"] or []) and process.cwd().startswith(home):
                found.append(process)
    return found


def numbers(caplog: pytest.LogCaptureFixture, word: str) -> list[int]:
    return [int(found) for found in re.findall(rf"\[rank 0\] {word} (\d+)", caplog.text)]


async def dead_follower(engine: Engine, document: dict[str, Any], **how: Any) -> tuple[Ticket, AttemptView]:
    """Start a trial and let its follower vanish without a word."""
    ticket = engine.submit(document, **how)
    carrying = asyncio.ensure_future(engine.carry(ticket))
    attempt_id = await running(engine, ticket, carrying)
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)
    return ticket, engine.hook.store.attempts.get(attempt_id)


def a_minute_passes(engine: Engine) -> None:
    """Set all renewals back by more than the duration of a lease."""
    store = engine.hook.store
    before = store.db.now() - timedelta(seconds=90)
    with store.db.engine.begin() as conn:
        conn.execute(attempts.update().values(renewed_at=before))
        conn.execute(allocations.update().values(renewed_at=before))


async def eventually(condition: Any) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.05)

    await asyncio.wait_for(wait(), DEADLINE_S)
