"""A trial that waits in the queue reacts to control requests at once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session import runtime, wakeup
from airflow_provider_dtrain.engine.session.runtime import take_over
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.engines import Engine, config


def holding(engine: Engine) -> Ticket:
    """Return a trial that holds every slot, without a process."""
    store, ticket = engine.hook.store, engine.submit(config("facts"))
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    store.queue.schedule("local")
    assert store.queue.take_up(ticket.attempt_id, watch) is not None
    store.attempts.set_running(ticket.attempt_id, watch)
    return ticket


async def reason_of(engine: Engine, ticket: Ticket) -> str:
    """Return why a trial waits, once it does."""
    while not (reason := engine.hook.store.attempts.get(ticket.attempt_id).reason):
        await asyncio.sleep(0.05)
    return reason


async def test_a_kill_wakes_a_trial_that_waits_however_lately_it_read_its_control_requests(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "CONTROL_CHECK_S", 3600.0)
    monkeypatch.setitem(wakeup.changed.__kwdefaults__, "timeout_s", 3600.0)
    holding(engine)
    waiting = engine.submit(config("facts"))
    log = TaskLog(logging.getLogger("engine"), 10**6)
    runner = AttemptRunner(await take_over(engine.hook, waiting.trial_id, log, watcher="test"))
    running = asyncio.ensure_future(runner.run(BackgroundRecovery(runner.rt.hook)))
    try:
        async with asyncio.timeout(120):
            assert "Position 1. 2 of 2 slots missing, held by dag.train (trial 1 of " in await reason_of(
                engine, waiting
            )
            engine.hook.store.control.kill(waiting.trial_id, "ann")
            outcome = await running
    finally:
        running.cancel()
    assert outcome is not None
    assert outcome.state == "killed"


async def test_a_pause_is_said_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    holding(engine)
    waiting = engine.submit(config("facts"))
    engine.hook.store.control.pause(waiting.trial_id, "ann")
    log = TaskLog(logging.getLogger("engine"), 10**6)
    runner = AttemptRunner(await take_over(engine.hook, waiting.trial_id, log, watcher="test"))
    running = asyncio.ensure_future(runner.run(BackgroundRecovery(runner.rt.hook)))
    try:
        async with asyncio.timeout(120):
            while "paused by ann" not in caplog.text:
                await asyncio.sleep(0.05)
            engine.hook.store.control.kill(waiting.trial_id, "ann")
            await running
    finally:
        running.cancel()
    assert caplog.text.count("resume with") == 1
