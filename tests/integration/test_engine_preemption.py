"""Gangs that give their slots back: for a more urgent one, for a pause, after their time. Real ranks, no torch."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.store.database.tables import allocations
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.counting import DEADLINE_S, config, numbers, preempt, ranks_of, running, until
from tests.support.engines import Engine, held

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("quick_looks")]


def cost(engine: Engine, allocation_id: int) -> float | None:
    with engine.hook.store.db.engine.begin() as conn:
        return conn.scalar(sa.select(allocations.c.cost_s).where(allocations.c.id == allocation_id))


async def preempted_once(engine: Engine, document: dict[str, Any]) -> tuple[Outcome, Ticket]:
    ticket = engine.submit(document)
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)
    await asyncio.sleep(0.6)
    preempt(engine, ticket)
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    return outcome, ticket


@pytest.mark.each_change
async def test_a_preempted_gang_writes_a_checkpoint_and_goes_on_from_it(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    outcome, ticket = await preempted_once(engine, config("library"))
    assert outcome.state == "completed"
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 0), "giving way is no failure"
    first, second = engine.hook.store.attempts.of_trial(ticket.trial_id)
    assert (first.state, first.failure, second.state) == ("preempted", None, "completed")
    assert first.allocation_id != second.allocation_id
    (stopped,), started = numbers(caplog, "stopped at"), numbers(caplog, "from")
    assert started == [0, stopped], "the second attempt began where the first one stopped"
    assert numbers(caplog, "done at") == [60]
    assert "must release its slots: preempted for" in caplog.text
    measured = cost(engine, second.allocation_id)
    assert measured is not None
    assert measured > 0
    assert held(engine) == []
    assert ranks_of(engine) == []


async def test_a_trial_that_finishes_although_it_was_asked_to_stop_is_completed(engine: Engine) -> None:
    outcome, ticket = await preempted_once(engine, config("to_the_end", 25))
    assert outcome.state == "completed"
    assert engine.hook.store.trials.get(ticket.trial_id).attempts == 1
    assert held(engine) == []


async def test_a_program_without_the_library_gets_sigterm_and_goes_on_later(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    outcome, ticket = await preempted_once(engine, config("plain"))
    assert outcome.state == "completed"
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 0)
    (stopped,) = numbers(caplog, "stopped at")
    assert numbers(caplog, "from") == [0, stopped]


async def test_ranks_without_the_library_leave_first_and_the_others_still_write_their_checkpoint(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    outcome, ticket = await preempted_once(engine, config("mixed", 400))
    assert outcome.state == "completed"
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 0)
    (stopped,), started = numbers(caplog, "stopped at"), numbers(caplog, "from")
    assert started == [0, stopped], "rank 0 was not hurried by the end of rank 1"
    assert "While it was asked to stop" not in caplog.text, "no rank has failed"


@pytest.mark.each_change("stubborn")
@pytest.mark.parametrize("way", ["deaf", "stubborn"])
async def test_ranks_that_do_not_listen_are_stopped_after_preemption_timeout(
    engine: Engine, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    caplog.set_level(logging.INFO)
    ticket = engine.submit(config(way, 100_000, preemption_timeout=2))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)
    preempt(engine, ticket)
    await running(engine, ticket, carrying, number=2)
    assert engine.hook.store.trials.get(ticket.trial_id).restarts == 0
    await until(lambda: numbers(caplog, "from") == [0, 0], carrying)
    assert engine.runtime is not None
    engine.runtime.kill()
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "killed"
    assert ranks_of(engine) == []


async def test_a_rank_that_fails_while_it_is_asked_to_stop_costs_no_restart(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    outcome, ticket = await preempted_once(engine, config("breaks"))
    assert outcome.state == "completed"
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 0)
    assert "While it was asked to stop: Rank" in caplog.text


@pytest.mark.each_change
async def test_a_paused_trial_holds_nothing_until_it_is_activated(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store, ticket = engine.hook.store, engine.submit(config("library"))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)
    store.control.pause(ticket.trial_id, by="ann")
    await until(lambda: store.trials.get(ticket.trial_id).state == "paused", carrying)
    assert held(engine) == []
    other = engine.submit(config("library", 1))
    beside = Engine(engine.hook)
    outcome = await asyncio.wait_for(beside.carry(other), DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed", "its slots are free for others"
    assert store.trials.get(ticket.trial_id).state == "paused"
    assert store.control.activate(ticket.trial_id, by="ann")
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"
    (stopped,), started = numbers(caplog, "stopped at"), numbers(caplog, "from")
    assert started == [0, 0, stopped]


async def test_a_trial_can_be_killed_while_it_is_paused(engine: Engine) -> None:
    store, ticket = engine.hook.store, engine.submit(config("library", 100_000))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)
    store.control.pause(ticket.trial_id, by="ann")
    await until(lambda: store.trials.get(ticket.trial_id).state == "paused", carrying)
    store.control.kill(ticket.trial_id, by="ann")
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "killed"
    assert store.trials.get(ticket.trial_id).state == "killed"


async def test_the_follower_that_takes_over_in_the_middle_of_a_stop_restarts_the_trial(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket = engine.submit(config("library", pause_s=0.5, last=20))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    attempt_id = await running(engine, ticket, carrying)
    preempt(engine, ticket)
    await until(lambda: engine.hook.store.attempts.get(attempt_id).state == "stopping", carrying)
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)
    preempt_is_over = {"preempted_at": None, "preempted_for": None}
    with engine.hook.store.db.engine.begin() as conn:
        conn.execute(allocations.update().values(**preempt_is_over))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    assert engine.hook.store.trials.get(ticket.trial_id).attempts == 2
    assert numbers(caplog, "done at") == [20]


@pytest.mark.parametrize("by_host", [False, True])
async def test_max_runtime_ends_the_run_with_an_error_of_its_own(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, by_host: bool
) -> None:
    if by_host:
        # As if the control side were down at that time: the supervisor enforces the limit, too.
        monkeypatch.setattr("airflow_provider_dtrain.engine.attempt.gang_follower.max_runtime_over", lambda _: None)
    ticket = engine.submit(config("library", 100_000, max_runtime=4, max_restarts=3))
    outcome = await asyncio.wait_for(engine.carry(ticket), DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.kind) == ("MaxRuntimeError", "user")
    assert "max_runtime (4 s)" in outcome.failure.message
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (1, 0)
    assert ranks_of(engine) == []
    assert held(engine) == []


async def test_a_more_urgent_trial_runs_first_and_the_other_one_goes_on(engine: Engine) -> None:
    """The whole sequence: the pass chooses the victim, the victim stops, the claimant runs, the victim resumes."""
    store = engine.hook.store
    store.pools.set("local", preemption="priority", min_run_s=0.0)
    low = engine.submit(config("library", 300, resources={"slots_per_trial": 2, "priority": 50}))
    carrying = asyncio.ensure_future(engine.carry(low))
    await running(engine, low, carrying)
    beside = Engine(engine.hook)
    high = engine.submit(config("library", 5, resources={"slots_per_trial": 2, "priority": 10}))
    urgent = await asyncio.wait_for(beside.carry(high), DEADLINE_S)
    assert urgent is not None
    assert urgent.state == "completed"
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"
    assert store.trials.get(low.trial_id).attempts == 2
    assert store.trials.get(high.trial_id).attempts == 1
