"""Gangs that several tasks use one after the other, on this machine: real store, real supervisor, real ranks."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import take_over
from airflow_provider_dtrain.engine.submission.submit import render, revive, submit
from airflow_provider_dtrain.engine.upkeep import held_gangs
from airflow_provider_dtrain.engine.upkeep.held_gangs import (
    GangTimeout,
    GangWaiter,
    HeldGang,
    as_xcom,
    ask_for_gang,
    end_held_gang,
)
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery, recover
from airflow_provider_dtrain.errors import GangEndedError, GangMismatchError, HostUnreachableError, UserError
from airflow_provider_dtrain.store.records.gangs import GangSubmission, GangView
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from tests.support.engines import CODE, Engine, config, held, processes, replace_link

#: Sleeps of this process alone, in seconds.
SLEEPS = [f"sleep {10**6 + 10 * os.getpid() + number}" for number in range(3)]
LOG = TaskLog(logging.getLogger("gang"), 10**6)


async def hold(engine: Engine, *, task: str = "gang", max_tries: int = 0, **fields: Any) -> GangView:
    key = TrialKey(dag_id="dag", run_id="run", task_id=task, max_tries=max_tries)
    asked = ask_for_gang(engine.hook, GangSubmission(key=key, pool="local", slots=2, **fields))
    waiter = GangWaiter(engine.hook, asked.allocation_id, LOG, watcher="test")
    view = await asyncio.wait_for(waiter.run(), 60)
    assert view is not None
    return view


def on_gang(engine: Engine, gang: GangView, arguments: str, *, task: str = "train", **more: Any) -> Ticket:
    key = TrialKey(dag_id="dag", run_id="run", task_id=task)
    stored = render(engine.hook, config(arguments, **more), None, CODE, pool=gang.pool)
    ticket = submit(engine.hook, stored, key=key, folder=CODE, gang=HeldGang.parse(as_xcom(gang)))
    revive(engine.hook.store, ticket)
    return ticket


async def carry(engine: Engine, ticket: Ticket) -> Outcome:
    """Follow a trial to its end and return its outcome. Several trials may be followed concurrently."""
    runtime = await take_over(engine.hook, ticket.trial_id, LOG, watcher="test")
    outcome = await asyncio.wait_for(AttemptRunner(runtime).run(BackgroundRecovery(runtime.hook)), 120)
    assert outcome is not None
    return outcome


async def until_running(engine: Engine, word: str, carrying: asyncio.Future[Any]) -> None:
    while len(processes(word)) < 4:
        assert not carrying.done(), carrying.result()
        await asyncio.sleep(0.05)


@pytest.mark.nightly
async def test_two_trials_use_one_gang_and_another_request_waits_until_it_is_released(engine: Engine) -> None:
    gang = await hold(engine)
    other = engine.submit(config("facts"))
    waiting = asyncio.ensure_future(carry(engine, other))
    for task in ("first", "second"):
        ticket = on_gang(engine, gang, "facts", task=task)
        outcome = await carry(engine, ticket)
        assert outcome.state == "completed"
        view = engine.hook.store.attempts.get(ticket.attempt_id)
        assert (view.token, view.placement) == (gang.token, gang.placement)
        assert len(held(engine)) == 2
    assert "gang of dag/gang" in engine.hook.store.attempts.get(other.attempt_id).reason
    left = await end_held_gang(engine.hook, gang.allocation_id, "released", LOG, watcher="test")
    assert left.state == "released"
    assert (await asyncio.wait_for(waiting, 120)).state == "completed"
    assert held(engine) == []


@pytest.mark.nightly
async def test_two_trials_at_once_take_turns(engine: Engine) -> None:
    gang = await hold(engine)
    tickets = [on_gang(engine, gang, "sleep 1", task="first"), on_gang(engine, gang, "facts", task="second")]
    outcomes = await asyncio.gather(*(carry(engine, ticket) for ticket in tickets))
    assert [outcome.state for outcome in outcomes] == ["completed"] * 2
    spans = sorted(
        (view.started_at, view.ended_at)
        for view in (engine.hook.store.attempts.get(ticket.attempt_id) for ticket in tickets)
        if view.started_at and view.ended_at
    )
    assert spans[0][1] <= spans[1][0], "never both at one time"


@pytest.mark.nightly
async def test_a_trial_that_fails_leaves_the_gang_to_the_next(engine: Engine) -> None:
    gang = await hold(engine)
    assert (await carry(engine, on_gang(engine, gang, "fail 1", task="bad", max_restarts=1))).state == "errored"
    assert (await carry(engine, on_gang(engine, gang, "facts", task="good"))).state == "completed"
    assert len(held(engine)) == 2


@pytest.mark.nightly
async def test_the_end_of_a_gang_in_use_ends_the_trial_and_names_why(engine: Engine) -> None:
    gang = await hold(engine)
    ticket = on_gang(engine, gang, SLEEPS[0])
    carrying = asyncio.ensure_future(carry(engine, ticket))
    await until_running(engine, SLEEPS[0], carrying)
    engine.hook.store.gangs.end_of_run("dag", "run", "its DAG run has ended (failed)")
    outcome = await asyncio.wait_for(carrying, 120)
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert outcome.failure.error == "GangEndedError"
    assert "its DAG run has ended (failed)" in outcome.failure.message
    assert processes(SLEEPS[0]) == []
    assert held(engine) == []


@pytest.mark.nightly
async def test_releasing_a_gang_whose_follower_is_gone_fences_the_run(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_gangs, "FOLLOWER_GRACE_S", 0.0)
    gang = await hold(engine)
    ticket = on_gang(engine, gang, SLEEPS[1])
    carrying = asyncio.ensure_future(carry(engine, ticket))
    await until_running(engine, SLEEPS[1], carrying)
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)
    assert len(processes(SLEEPS[1])) == 4
    left = await end_held_gang(engine.hook, gang.allocation_id, "released", LOG, watcher="test")
    assert left.state == "released"
    assert processes(SLEEPS[1]) == []
    assert held(engine) == []
    again = await end_held_gang(engine.hook, gang.allocation_id, "released again", LOG, watcher="test")
    assert (again.state, again.ended_because) == ("released", "released")


@pytest.mark.nightly
async def test_a_host_that_is_lost_ends_the_gang_by_name_and_recovery_frees_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = await hold(engine)
    ticket = on_gang(engine, gang, "facts")
    error = HostUnreachableError("local", "The cable is out.")
    with monkeypatch.context() as broken:
        replace_link(broken, lambda *_: (_ for _ in ()).throw(error))
        outcome = await carry(engine, ticket)
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.kind) == ("HostUnreachableError", "infra")
    store = engine.hook.store
    if store.gangs.get(gang.allocation_id).is_usable:
        # Nothing was started there, so the same gang serves the retry.
        assert (await carry(engine, on_gang(engine, gang, "facts"))).state == "completed"
    else:
        assert await recover(engine.hook) == ["local"]
        with pytest.raises(GangEndedError, match="local did not confirm"):
            on_gang(engine, gang, "facts")


@pytest.mark.nightly
async def test_a_host_that_vanishes_under_a_run_ends_the_gang(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    gang = await hold(engine)
    ticket = on_gang(engine, gang, SLEEPS[2])
    runtime = await take_over(engine.hook, ticket.trial_id, LOG, watcher="test")
    carrying = asyncio.ensure_future(AttemptRunner(runtime).run(BackgroundRecovery(runtime.hook)))
    await until_running(engine, SLEEPS[2], carrying)
    error = HostUnreachableError("local", "The cable is out.")
    with monkeypatch.context() as broken:
        replace_link(broken, lambda *_: (_ for _ in ()).throw(error))
        runtime.kill()
        outcome = await asyncio.wait_for(carrying, 120)
    assert outcome is not None
    assert outcome.state == "killed"
    assert len(held(engine)) == 2, "the host has confirmed nothing"
    with pytest.raises(GangEndedError, match="local did not confirm"):
        on_gang(engine, gang, "facts", task="next")
    assert await recover(engine.hook) == ["local"]
    assert processes(SLEEPS[2]) == []
    assert held(engine) == []


async def test_a_wait_that_times_out_leaves_the_queue(engine: Engine) -> None:
    await hold(engine)
    key = TrialKey(dag_id="dag", run_id="run", task_id="other")
    asked = ask_for_gang(engine.hook, GangSubmission(key=key, pool="local", slots=1))
    waiter = GangWaiter(engine.hook, asked.allocation_id, LOG, watcher="test", deadline=time.time() + 0.5)
    with pytest.raises(GangTimeout, match="No gang of 1 slots"):
        await asyncio.wait_for(waiter.run(), 60)
    await waiter.withdraw("the task timed out")
    assert [task.key.task_id for task in engine.hook.store.queue_view.tasks()] == ["gang"]


async def test_a_configuration_of_another_size_is_an_error_by_name(engine: Engine) -> None:
    gang = await hold(engine)
    with pytest.raises(GangMismatchError, match="asks for 1 slot"):
        on_gang(engine, gang, "facts", slots=1)


@pytest.mark.parametrize("value", [None, 7, {"allocation_id": 1}, {"allocation_id": "x", "token": 1}])
def test_what_is_no_gang_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match=r"allocation=sensor\.output"):
        HeldGang.parse(value)
