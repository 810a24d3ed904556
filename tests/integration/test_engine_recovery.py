"""Attempts whose follower died for good, stores restored from a backup, files that lost their end. Real ranks."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt import reconciliation, runner
from airflow_provider_dtrain.engine.copies import checkpoint_cleanup
from airflow_provider_dtrain.engine.session.lease_renewer import Renewer
from airflow_provider_dtrain.engine.upkeep import recovery
from airflow_provider_dtrain.engine.upkeep.orphaned_trials import carry_out
from airflow_provider_dtrain.engine.upkeep.recovery import recover
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.store.database.tables import allocation_slots
from tests.support.counting import a_minute_passes, config, dead_follower, eventually, numbers, ranks_of, running, until
from tests.support.engines import Engine, held

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("quick_looks")]

DEADLINE_S = 120.0
RECOVERED_WITHIN_S = 20.0


async def recovered_after_a_minute(engine: Engine) -> list[str]:
    """Return the hosts where recovery freed slots.

    Retries, because a renewal in progress may be committed after the minute, and because a supervisor records the end
    of its ranks a moment after they are gone.
    """
    give_up = time.monotonic() + RECOVERED_WITHIN_S
    while time.monotonic() < give_up:
        a_minute_passes(engine)
        if found := await recover(engine.hook):
            return found
        await asyncio.sleep(0.1)
    return []


def back_up(database: Path, target: Path) -> None:
    with sqlite3.connect(database) as source, sqlite3.connect(target) as copy:
        source.backup(copy)


@pytest.mark.each_change
async def test_a_run_goes_on_without_its_follower_and_is_completed_by_whoever_looks(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ticket, view = await dead_follower(engine, config("library", 15), run_id="salvaged")
    a_minute_passes(engine)
    assert await recover(engine.hook) == [], "it lives: only its host may end it"
    assert engine.hook.store.attempts.get(view.attempt_id).watch == view.watch
    await eventually(lambda: ranks_of(engine) == [])
    assert len(held(engine)) == 2
    caplog.clear()
    assert await recovered_after_a_minute(engine) == ["local"]
    assert held(engine) == []
    assert [record for record in caplog.records if record.name.endswith("engine.upkeep.recovery")] == []
    assert "left out" not in caplog.text
    ended = engine.hook.store.attempts.get(view.attempt_id)
    assert (ended.state, ended.trial_state) == ("completed", "completed")
    kinds = [event.kind for event in engine.hook.store.events.of_attempt(view.attempt_id)]
    assert (kinds.count("exit"), kinds.count("ended"), kinds.count("result")) == (2, 1, 1)
    again = engine.submit(config("library", 15), run_id="salvaged")
    outcome = await engine.carry(again)
    assert outcome is not None
    assert (outcome.state, again.trial_id) == ("completed", ticket.trial_id)
    assert outcome.result is not None
    assert outcome.result["trial_id"] == ticket.trial_id
    assert engine.hook.store.trials.get(ticket.trial_id).attempts == 1


@pytest.mark.parametrize("by_retry", [True, False])
async def test_a_failed_run_without_a_follower_ends_by_the_rules_and_keeps_its_restarts(
    engine: Engine, by_retry: bool
) -> None:
    document = config("fails_once", 10, max_restarts=1)
    ticket, view = await dead_follower(engine, document, run_id="failed")
    await eventually(lambda: ranks_of(engine) == [])
    assert await recovered_after_a_minute(engine) == ["local"]
    ended = engine.hook.store.attempts.get(view.attempt_id)
    assert (ended.state, ended.trial_state) == ("failed", "errored")
    assert ended.failure is not None
    assert (ended.failure["error"], ended.failure["kind"]) == ("RankFailedError", "user")
    assert engine.hook.store.trials.get(ticket.trial_id).attempts == 1, "recovery begins nothing new"
    # An Airflow retry submits again; a trigger that moved only follows again.
    again = engine.submit(document, run_id="failed") if by_retry else ticket
    outcome = await engine.carry(again)
    assert outcome is not None
    assert outcome.state == "completed"
    trial = engine.hook.store.trials.get(ticket.trial_id)
    assert (trial.attempts, trial.restarts) == (2, 1)


async def test_a_killed_supervisor_without_a_follower_is_a_failure_of_the_host(engine: Engine) -> None:
    _, view = await dead_follower(engine, config("library", 100_000))
    parent = ranks_of(engine)[0].parent()
    assert parent is not None
    assert parent.pid != os.getpid()
    os.kill(parent.pid, signal.SIGKILL)
    await eventually(lambda: ranks_of(engine) == [])
    assert await recovered_after_a_minute(engine) == ["local"]
    ended = engine.hook.store.attempts.get(view.attempt_id)
    assert ended.trial_state == "errored"
    assert ended.failure is not None
    assert (ended.failure["error"], ended.failure["kind"]) == ("HostLostError", "infra")
    assert held(engine) == []


@pytest.mark.each_change
async def test_an_attempt_whose_follower_died_before_the_launch_waits_again(engine: Engine) -> None:
    store, ticket = engine.hook.store, engine.submit(config("library", 2))
    watch = store.attempts.watch(ticket.attempt_id, watcher="dies")
    store.queue.schedule("local")
    assert store.queue.take_up(ticket.attempt_id, watch) is not None
    assert len(held(engine)) == 2
    assert await recovered_after_a_minute(engine) == ["local"]
    assert held(engine) == []
    assert store.attempts.get(ticket.attempt_id).state == "waiting"
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"


async def test_a_plan_that_a_silent_follower_wrote_at_the_last_moment_is_fenced(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ticket = engine.hook.store, engine.submit(config("library", 2), run_id="late")
    watch = store.attempts.watch(ticket.attempt_id, watcher="slow")
    store.queue.schedule("local")
    assert store.queue.take_up(ticket.attempt_id, watch) is not None
    a_minute_passes(engine)
    take = recovery.RecoveryPass._take

    async def taken(*arguments: Any) -> Any:
        store.attempts.set_plan(ticket.attempt_id, watch, {"plans": {"local": {}}})
        return await take(*arguments)

    monkeypatch.setattr(recovery.RecoveryPass, "_take", taken)
    assert await recover(engine.hook) == ["local"]
    with store.db.engine.connect() as conn:
        proofs = conn.scalars(allocation_slots.select().with_only_columns(allocation_slots.c.proof)).all()
    assert set(proofs) == {"clear"}, "a host may have been told: it has to answer"
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"


@pytest.mark.each_change
async def test_a_waiting_trial_gets_the_slots_of_one_whose_follower_died(engine: Engine) -> None:
    ticket, _ = await dead_follower(engine, config("library", 5))
    a_minute_passes(engine)
    other = engine.submit(config("library", 1))
    outcome = await asyncio.wait_for(Engine(engine.hook).carry(other), DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"
    assert engine.hook.store.trials.get(ticket.trial_id).state == "completed"


async def test_a_follower_that_was_silent_takes_its_trial_back(engine: Engine) -> None:
    store, ticket = engine.hook.store, engine.submit(config("library", 30))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    attempt_id = await running(engine, ticket, carrying)
    store.attempts.watch(attempt_id, watcher=recovery.RECOVERY)
    await asyncio.sleep(1.0)
    store.attempts.watch(attempt_id, watcher=recovery.RECOVERY_DONE)
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"
    assert store.attempts.get(attempt_id).watcher == "test"


@pytest.mark.each_change
async def test_a_follower_that_another_one_replaced_stops_silently(engine: Engine) -> None:
    ticket = engine.submit(config("library", 30))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)
    outcome = await Engine(engine.hook).carry(ticket)
    with pytest.raises(runner.Superseded):
        await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"


async def test_a_command_kills_a_trial_that_nobody_follows(engine: Engine) -> None:
    ticket, view = await dead_follower(engine, config("library", 100_000))
    engine.hook.store.control.kill(ticket.trial_id, by="ann")
    assert await asyncio.to_thread(carry_out, engine.hook, [ticket.trial_id]) == [], "it was followed just now"
    a_minute_passes(engine)
    with pytest.raises(NotFoundError):
        await asyncio.to_thread(carry_out, engine.hook, [10**6, ticket.trial_id])
    assert ranks_of(engine) == [], "an error of one trial keeps no other one running"
    assert engine.hook.store.trials.get(ticket.trial_id).state == "killed"
    assert held(engine) == []
    failure = engine.hook.store.attempts.get(view.attempt_id).failure
    assert failure is not None
    assert failure["message"].startswith("The trial was killed by ann at ")


async def test_a_command_pauses_a_trial_that_nobody_follows(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    ticket, _ = await dead_follower(engine, config("library", 300))
    a_minute_passes(engine)
    store = engine.hook.store
    store.control.pause(ticket.trial_id, by="ann")
    assert await asyncio.to_thread(carry_out, engine.hook, [ticket.trial_id]) == [ticket.trial_id]
    assert store.trials.get(ticket.trial_id).state == "paused"
    assert held(engine) == []
    store.control.activate(ticket.trial_id, by="ann")
    caplog.set_level(logging.INFO)
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    assert numbers(caplog, "from")[-1] > 0, "it went on from where it was paused"


@pytest.mark.each_change
async def test_a_restored_store_takes_no_other_run_for_its_own(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same trial, attempt and token again: the host knows better."""
    monkeypatch.setattr(reconciliation, "LEASE_TTL_S", 1e6)
    first = engine.submit(config("library", 1), run_id="before")
    await engine.carry(first)
    back_up(tmp_path / "dtrain.db", tmp_path / "restored.db")
    forgotten = engine.submit(config("library", 100_000), run_id="forgotten")
    following = asyncio.ensure_future(engine.carry(forgotten))
    lost = engine.hook.store.attempts.get(await running(engine, forgotten, following))
    options = dataclasses.replace(engine.hook.settings, sql_alchemy_conn=f"sqlite:///{tmp_path}/restored.db")
    after = Engine(DtrainHook(options))
    assert after.hook.store.store_id == engine.hook.store.store_id
    ticket = after.submit(config("library", 3), run_id="after")
    caplog.set_level(logging.INFO)
    carrying = asyncio.ensure_future(after.carry(ticket))
    await until(lambda: "the trial waits for another" in caplog.text, carrying)
    store = after.hook.store
    await until(lambda: store.attempts.get(store.trials.get(ticket.trial_id).attempt_id).state == "waiting", carrying)
    assert f"Run {lost.run} of another launch" in caplog.text, "its name was given out again"
    assert len(ranks_of(engine)) == 2, "the earlier follower still renews it"
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    monkeypatch.setattr(reconciliation, "LEASE_TTL_S", 1.0)
    outcome = await asyncio.wait_for(carrying, DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"
    trial = after.hook.store.trials.get(ticket.trial_id)
    assert trial.restarts == 0
    last = after.hook.store.attempts.of_trial(ticket.trial_id)[-1]
    assert last.run != lost.run
    assert last.token is not None
    assert lost.token is not None
    assert last.token > lost.token
    assert "restored from a backup" in caplog.text
    assert "attempt 1: the log" not in caplog.text.partition("the trial waits for another")[2], "it never ran"
    assert ranks_of(engine) == [], "the run that the store has forgotten is fenced"


@pytest.mark.each_change
async def test_a_run_that_a_restored_store_has_forgotten_is_fenced_and_its_slots_are_used(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "LEASE_TTL_S", 3.0)
    backup = tmp_path / "backup.db"
    back_up(tmp_path / "dtrain.db", backup)
    for number in range(2):
        await engine.carry(engine.submit(config("library", 1), run_id=f"ended {number}"))
    await dead_follower(engine, config("library", 100_000), run_id="forgotten")
    options = dataclasses.replace(engine.hook.settings, sql_alchemy_conn=f"sqlite:///{backup}")
    after = Engine(DtrainHook(options))
    ticket = after.submit(config("library", 3), run_id="after")
    outcome = await asyncio.wait_for(after.carry(ticket), DEADLINE_S)
    assert outcome is not None
    assert outcome.state == "completed"
    assert after.hook.store.trials.get(ticket.trial_id).restarts == 0
    assert ranks_of(engine) == []


async def test_a_file_that_lost_its_end_begins_a_new_epoch_and_repeats_nothing(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = engine.hook.store
    ticket, view = await dead_follower(engine, config("library", 30))
    before = store.events.of_attempt(view.attempt_id)
    events = tmp_path / "state" / "runs" / str(view.run) / "events.supervisor"
    first, *_ = events.read_bytes().splitlines(keepends=True)
    assert store.events.offsets(view.attempt_id)["local", "supervisor.events"] > len(first)
    os.truncate(events, len(first))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    stored = store.events.of_attempt(view.attempt_id)
    assert store.events.epochs(view.attempt_id)["local", "supervisor.events"] == 1
    (gap,) = [event for event in stored if event.kind == "gap"]
    assert gap.body["epoch"] == 1
    own = [(event.stream, event.seq, event.kind) for event in stored if event.kind != "gap"]
    assert len(own) == len(set(own)), "no event is there twice"
    assert {(event.stream, event.seq, event.kind) for event in before} <= set(own), "none is lost"
    kinds = [event.kind for event in stored]
    assert (kinds.count("started"), kinds.count("exit"), kinds.count("ended")) == (1, 2, 1)
    assert "It is read again from its start" in caplog.text


async def test_a_run_that_ended_itself_is_started_again_and_not_counted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.hook.settings = dataclasses.replace(engine.hook.settings, orphan_timeout_s=3.0)
    tell, silent = Renewer._send, True

    def held_back(*args: Any) -> None:
        if not silent:
            tell(*args)

    monkeypatch.setattr(Renewer, "_send", staticmethod(held_back))
    ticket = engine.submit(config("library", 120, max_restarts=0))
    carrying = asyncio.ensure_future(engine.carry(ticket))
    await running(engine, ticket, carrying)
    await until(lambda: engine.hook.store.trials.get(ticket.trial_id).attempts == 2, carrying)
    engine.hook.settings = dataclasses.replace(engine.hook.settings, orphan_timeout_s=900.0)
    silent = False
    store = engine.hook.store
    first = store.attempts.of_trial(ticket.trial_id)[0]
    assert first.failure is not None
    assert (first.failure["error"], first.failure["kind"]) == ("RunEndedError", "platform")
    assert "its lease had not been renewed" in first.failure["message"]
    store.control.kill(ticket.trial_id, by="ann")
    await asyncio.wait_for(carrying, DEADLINE_S)
    assert store.trials.get(ticket.trial_id).restarts == 0


async def test_a_removal_that_takes_long_does_not_hold_up_the_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def hangs(*_: Any) -> list[Any]:
        begun.set()
        await goes_on.wait()
        return []

    monkeypatch.setattr(checkpoint_cleanup, "_from_host", hangs)
    monkeypatch.setattr(checkpoint_cleanup, "REMOVAL_PATIENCE_S", 0.2)
    ticket = engine.submit(config("library", 1, checkpoint_storage={"save_trial_latest": 0, "save_trial_best": 0}))
    outcome = await engine.carry(ticket)
    assert outcome is not None
    assert outcome.state == "completed"
    assert begun.is_set()
    assert not goes_on.is_set()
    goes_on.set()
