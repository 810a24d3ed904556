"""Gangs that leave a host before a deadline and resume on another one. Real ranks, no torch."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.engine.upkeep.orphaned_trials import carry_out
from airflow_provider_dtrain.store.records.trials import Ticket
from tests.support.counting import (
    DEADLINE_S,
    a_minute_passes,
    config,
    dead_follower,
    eventually,
    numbers,
    ranks_of,
    running,
    until,
)
from tests.support.engines import Engine, held, second

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("quick_looks")]


@pytest.fixture
def two(engine: Engine, tmp_path: Path) -> Engine:
    """An engine with two hosts of two slots: ``local`` and ``other``."""
    second(engine, tmp_path / "second")
    return engine


def host_of(engine: Engine, ticket: Ticket) -> str:
    store = engine.hook.store
    (name,) = store.attempts.get(store.trials.get(ticket.trial_id).attempt_id).placement
    return name


def drain(engine: Engine, name: str, after_s: float = 0.0, *, kills: bool = False) -> None:
    store = engine.hook.store
    store.hosts.drain(name, "fan", deadline=store.db.now() + timedelta(seconds=after_s), kills=kills, by="ann")


async def begun(engine: Engine, document: dict[str, Any]) -> tuple[Ticket, asyncio.Future[Any], str]:
    ticket = engine.submit(document)
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)
    return ticket, carrying, host_of(engine, ticket)


async def completed(engine: Engine, carrying: asyncio.Future[Any]) -> None:
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome.state == "completed", outcome.failure
    assert held(engine) == []
    assert ranks_of(engine) == []


def evacuations(engine: Engine, ticket: Ticket) -> list[str]:
    entries = engine.hook.store.timeline.of_trial(ticket.trial_id)
    return [one.text for one in entries if one.kind == TimelineKind.EVACUATED]


@pytest.mark.each_change
async def test_an_evacuated_gang_saves_and_resumes_on_the_other_host(
    two: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket, carrying, left = await begun(two, config("library"))
    drain(two, left)
    await until(lambda: two.hook.store.hosts.get(left).state == "drained", carrying)
    await completed(two, carrying)
    (stopped,), started = numbers(caplog, "stopped at"), numbers(caplog, "from")
    assert started == [0, stopped], "no work is lost"
    assert host_of(two, ticket) != left
    assert two.hook.store.trials.get(ticket.trial_id).restarts == 0
    (text,) = evacuations(two, ticket)
    (other,) = {"local", "other"} - {left}
    assert text.startswith(f"Evacuated from {left}: fan: saved at step {stopped}, resumed on {other} after "), text
    assert text.endswith("lost work 0 steps."), text


async def test_no_other_host_is_free_so_the_trial_waits_until_the_host_is_enabled(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket, carrying, left = await begun(engine, config("library"))
    drain(engine, left)
    await until(lambda: engine.hook.store.hosts.get(left).state == "drained", carrying)
    await until(lambda: engine.hook.store.trials.get(ticket.trial_id).state == "queued", carrying)
    engine.hook.store.hosts.set_state(left, HostState.READY, by="ann")
    await completed(engine, carrying)
    (stopped,), started = numbers(caplog, "stopped at"), numbers(caplog, "from")
    assert started == [0, stopped]


async def test_a_deadline_far_ahead_or_taken_back_stops_nothing(two: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticket, carrying, left = await begun(two, config("library", 30, preemption_timeout=5))
    drain(two, left, 3600)
    await until(lambda: f"Host '{left}' is to be empty by" in caplog.text, carrying)
    two.hook.store.hosts.set_state(left, HostState.READY, by="ann")
    await completed(two, carrying)
    assert two.hook.store.trials.get(ticket.trial_id).attempts == 1


async def test_a_gang_that_is_not_preemptible_stays_until_it_is_killed_at_the_deadline(
    two: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket = two.submit(config("plain", 60, preemptible=False))
    carrying = asyncio.ensure_future(two.carry(ticket))
    store = two.hook.store
    await until(lambda: numbers(caplog, "from") == [0], carrying)
    left = host_of(two, ticket)
    drain(two, left)
    await until(lambda: "cannot resume from a checkpoint, so it stays until it ends" in caplog.text, carrying)
    assert store.attempts.get(ticket.attempt_id).state == "running"
    drain(two, left, kills=True)
    await until(lambda: len(numbers(caplog, "from")) == 2, carrying)
    await completed(two, carrying)
    assert host_of(two, ticket) != left


@pytest.mark.each_change
async def test_a_follower_that_dies_while_the_gang_leaves_is_replaced_and_nothing_is_lost(
    two: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket, carrying, left = await begun(two, config("library"))
    drain(two, left)
    await until(lambda: two.hook.store.attempts.get(ticket.attempt_id).state == "stopping", carrying)
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)
    await completed(two, asyncio.ensure_future(two.carry(ticket)))
    assert host_of(two, ticket) != left
    (stopped,), started = numbers(caplog, "stopped at"), numbers(caplog, "from")
    assert started[-1] == stopped


async def test_a_gang_without_a_follower_is_asked_by_the_command(two: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticket, view = await dead_follower(two, config("library"))
    (left,) = view.placement
    a_minute_passes(two)
    drain(two, left)
    store = two.hook.store
    assert await asyncio.to_thread(carry_out, two.hook, [ticket.trial_id]) == [ticket.trial_id]
    assert store.attempts.get(view.attempt_id).state == "preempted"
    await eventually(lambda: store.hosts.get(left).state == "drained")
    again = two.submit(config("library"), run_id="1")
    await completed(two, asyncio.ensure_future(two.carry(again)))
    assert again.trial_id == ticket.trial_id
