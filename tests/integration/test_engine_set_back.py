"""Followers whose store loses its last commits go by what it still knows, within seconds. Real ranks, no torch."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from airflow_provider_dtrain.engine.attempt import gang_follower
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import take_over
from airflow_provider_dtrain.engine.upkeep.held_gangs import GangWaiter, ask_for_gang
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery
from airflow_provider_dtrain.errors import StoreError
from airflow_provider_dtrain.store.records.gangs import GangSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store
from airflow_provider_dtrain.triggers import _followed_trial as triggers
from airflow_provider_dtrain.triggers.trial import TrialTrigger
from testbed.stores import host
from tests.support.counting import config, ranks_of, running, until
from tests.support.engines import Engine
from tests.support.store_world import Clock, copy_of, set_back

pytestmark = pytest.mark.usefixtures("quick_looks")

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch):
    monkeypatch.setattr(gang_follower, "CHECK_WATCH_S", 0.2)


def run_of(engine: Engine, ticket) -> str | None:
    store = engine.hook.store
    return store.attempts.get(store.trials.get(ticket.trial_id).attempt_id).run


@pytest.mark.nightly("watch")
@pytest.mark.parametrize("kept", ["submission", "watch"])
async def test_a_run_that_the_store_has_lost_is_ended_and_its_trial_starts_again(engine, caplog, kept):
    """Before, its follower waited ten minutes, or followed a run that the store knew nothing of to its end."""
    caplog.set_level(logging.INFO)
    ticket, log = engine.submit(config("library", 4000)), TaskLog(logging.getLogger("engine"), 10**6)
    before = copy_of(engine.hook.store)
    runtime = await take_over(engine.hook, ticket.trial_id, log, watcher="test")
    if kept == "watch":
        before = copy_of(engine.hook.store)
    carrying = asyncio.ensure_future(AttemptRunner(runtime).run(BackgroundRecovery(runtime.hook)))
    await running(engine, ticket, carrying)
    lost, pids = run_of(engine, ticket), {rank.pid for rank in ranks_of(engine)}
    set_back(engine.hook.store, before)
    await until(lambda: "attempt 1, which the store has lost, is gone on host 'local'" in caplog.text, carrying)
    await running(engine, ticket, carrying)
    assert run_of(engine, ticket) != lost
    assert pids.isdisjoint({rank.pid for rank in ranks_of(engine)})
    runtime.kill()
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome.state == "killed"
    assert ranks_of(engine) == []


@pytest.mark.nightly
async def test_a_run_that_the_store_still_knows_goes_on_when_only_its_watch_was_lost(engine, caplog):
    ticket = engine.submit(config("library", 4000))
    first = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, first)
    before, pids = copy_of(engine.hook.store), {rank.pid for rank in ranks_of(engine)}
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await until(lambda: engine.runtime.followed is not None, carrying)
    set_back(engine.hook.store, before)
    await until(lambda: "has lost the last commits" in caplog.text, carrying)
    await until(lambda: engine.runtime.followed is not None, carrying)
    assert {rank.pid for rank in ranks_of(engine)} == pids
    engine.runtime.kill()
    assert (await asyncio.wait_for(carrying, DEADLINE_S)).state == "killed"


@pytest.mark.nightly
async def test_the_follower_of_a_trial_that_the_store_has_lost_ends_its_ranks_and_says_what_to_do(engine):
    before = copy_of(engine.hook.store)
    ticket = engine.submit(config("library", 4000))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)
    set_back(engine.hook.store, before)
    with pytest.raises(StoreError, match=rf"has lost trial {ticket.trial_id}.*clear it in Airflow"):
        await asyncio.wait_for(carrying, DEADLINE_S)
    assert ranks_of(engine) == []


async def test_a_waiter_for_a_gang_goes_on_under_a_new_watch_when_the_store_has_lost_its_own(engine, caplog):
    key = TrialKey(dag_id="dag", run_id="r", task_id="hold")
    gang = ask_for_gang(engine.hook, GangSubmission(key=key, pool="local", slots=2))
    before = copy_of(engine.hook.store)
    waiter = GangWaiter(engine.hook, gang.allocation_id, TaskLog(logging.getLogger("gang"), 10**6), watcher="test")
    waiter.watch = engine.hook.store.gangs.watch(gang.allocation_id, watcher="test")
    set_back(engine.hook.store, before)
    assert (await asyncio.wait_for(waiter.run(), DEADLINE_S)).state == "running"
    assert "has lost the last commits of gang" in caplog.text


async def test_a_trigger_takes_a_waiting_trial_whose_request_was_silent_for_a_minute(tmp_path, monkeypatch):
    monkeypatch.setattr(triggers, "POLL_AGAIN_S", 0.01)
    clock = Clock()
    store = Store.open(f"sqlite:///{tmp_path}/store.db", clock=clock)
    store.hosts.add(host("h1", 1))
    key = TrialKey(dag_id="d", run_id="r", task_id="t")
    wanted = {"key": key, "experiment_name": "e", "config_id": store.configs.put({}, origins={}).config_id}
    ticket = store.trials.submit(TrialSubmission(**wanted, pool="gpus", slots=1))
    trigger = TrialTrigger(trial_ids=[ticket.trial_id])
    trial = trigger._trials[ticket.trial_id]
    trial._runtime = SimpleNamespace(store=store)
    clock.advance(59.0)
    waiting = asyncio.ensure_future(trial._until_alone())
    assert (await asyncio.wait({waiting}, timeout=0.3))[1] == {waiting}
    clock.advance(1.0)
    await asyncio.wait_for(waiting, DEADLINE_S)
    store.close()
