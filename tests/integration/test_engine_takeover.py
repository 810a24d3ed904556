"""Two followers of one gang: the replaced one changes nothing, and a kill needs no store. Real ranks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session import runtime as runtimes
from airflow_provider_dtrain.engine.session.runtime import Runtime, take_over
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.errors import HostUnreachableError, StaleWatchError, StoreUnavailableError
from airflow_provider_dtrain.store.records.trials import Ticket
from airflow_provider_dtrain.triggers import trial as triggers
from tests.support.counting import config, ranks_of, running
from tests.support.engines import Engine

pytestmark = pytest.mark.usefixtures("quick_looks")

DEADLINE_S = 60.0


@dataclass
class Replaced:
    """A gang whose follower was replaced by another one."""

    engine: Engine
    ticket: Ticket
    old: Runtime
    new: Runtime
    following: asyncio.Future[Any]
    pids: list[int]

    def is_untouched(self) -> bool:
        """Return whether its ranks and its only attempt run as before."""
        attempts = self.engine.hook.store.attempts.of_trial(self.ticket.trial_id)
        return pids(self.engine) == self.pids and [one.state for one in attempts] == ["running"]


def pids(engine: Engine) -> list[int]:
    return sorted(process.pid for process in ranks_of(engine))


@pytest.fixture
async def replaced(engine: Engine) -> AsyncIterator[Replaced]:
    ticket = engine.submit(config("library", 4000))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)
    assert engine.runtime is not None
    # The first follower is silent: a stopped process, or one behind a broken network.
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)
    log = TaskLog(logging.getLogger("new"), 10**6)
    new = await take_over(engine.hook, ticket.trial_id, log, watcher="worker on b")
    following = asyncio.ensure_future(AttemptRunner(new).run(BackgroundRecovery(new.hook)))
    yield Replaced(engine, ticket, engine.runtime, new, following, pids(engine))
    new.kill()
    await asyncio.wait_for(following, DEADLINE_S)
    assert pids(engine) == []


def trigger_of(replaced: Replaced, monkeypatch: pytest.MonkeyPatch, answer: bool | Exception) -> triggers.TrialTrigger:
    async def is_deferred(_: object) -> bool:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(triggers, "is_deferred", is_deferred)
    return triggers.TrialTrigger(trial_ids=[replaced.ticket.trial_id])


@pytest.mark.nightly
async def test_a_replaced_trigger_that_is_killed_leaves_the_gang_to_its_follower(replaced, monkeypatch):
    trigger = trigger_of(replaced, monkeypatch, answer=False)
    trigger._trials[replaced.ticket.trial_id]._runtime = replaced.old
    await trigger.on_kill()
    assert replaced.is_untouched()


@pytest.mark.nightly("no answer")
@pytest.mark.parametrize("answer", [True, ConnectionError("no API server")], ids=["moved", "no answer"])
async def test_a_trigger_that_moved_or_knows_nothing_ends_nothing(replaced, monkeypatch, answer):
    trigger = trigger_of(replaced, monkeypatch, answer)
    trigger._trials[replaced.ticket.trial_id]._runtime = replaced.new
    await trigger.on_kill()
    assert replaced.is_untouched()


@pytest.mark.nightly
async def test_a_trigger_whose_task_is_over_ends_its_gang(replaced, monkeypatch):
    trigger = trigger_of(replaced, monkeypatch, answer=False)
    trigger._trials[replaced.ticket.trial_id]._runtime = replaced.new
    await trigger.on_kill()
    assert pids(replaced.engine) == []


@pytest.mark.nightly
async def test_a_replaced_follower_whose_connection_breaks_leaves_the_gang(replaced):
    error = HostUnreachableError("local", "The connection broke.")
    view = await replaced.old.view()
    with pytest.raises(StaleWatchError):
        await AttemptRunner(replaced.old).restarts.attempt_failed(view, error)
    assert replaced.is_untouched()


async def _ranks_gone(engine: Engine, within_s: float) -> bool:
    give_up_at = time.monotonic() + within_s
    while pids(engine) and time.monotonic() < give_up_at:
        await asyncio.sleep(0.1)
    return not pids(engine)


@pytest.fixture
async def without_store(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    """A running gang whose follower's store has just gone away."""
    ticket = engine.submit(config("library", 4000))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)

    assert engine.runtime is not None
    store, is_away = engine.hook.store, True

    def away(method: Any) -> Any:
        # Not reverted: a caller that waits for the store keeps the method that it received.
        def call(*arguments: Any, **named: Any) -> Any:
            if is_away:
                raise StoreUnavailableError("gone")
            return method(*arguments, **named)

        return call

    of_attempts = ((type(store.attempts), name) for name in ("get", "check_watch", "renew", "end"))
    others = (type(store.control), "pending"), (type(store.trials), "get"), (type(store.queue), "release")
    for kind, name in (*of_attempts, *others):
        monkeypatch.setattr(kind, name, away(getattr(kind, name)))
    yield engine.runtime
    is_away = False
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome.state == "killed"
    assert pids(engine) == []


@pytest.mark.nightly
async def test_a_kill_reaches_the_hosts_while_the_store_is_away(engine, without_store):
    without_store.kill()
    assert await _ranks_gone(engine, within_s=20.0)


@pytest.mark.nightly
async def test_a_kill_after_a_long_silence_waits_for_the_store(engine, without_store, monkeypatch):
    """Another process may follow the gang by then."""
    without_store.proved_at -= runtimes.PROVED_S + 1
    without_store.kill()
    assert not await _ranks_gone(engine, within_s=3.0)
