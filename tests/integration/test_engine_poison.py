"""Invalid input from ranks and hosts: the trial ends as specified, its slots are freed, other trials continue."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt import stream
from airflow_provider_dtrain.engine.attempt.gang_follower import GangFollower
from airflow_provider_dtrain.engine.attempt.outcome import Outcome
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Runtime, take_over
from airflow_provider_dtrain.engine.submission.submit import render, revive, submit
from airflow_provider_dtrain.engine.upkeep.recovery import BackgroundRecovery, RecoveryPass
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.hosts.wire import Frame
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey
from testbed.stores import new_sqlite
from tests.support.engines import register

pytestmark = pytest.mark.usefixtures("quick_looks")

CODE = Path(__file__).parents[1] / "jobs"


class Engine:
    """Do the work of an operator, without Airflow around it."""

    def __init__(self, hook: DtrainHook) -> None:
        self.hook, self.runs = hook, 0

    def submit(self, arguments: str, *, slots: int = 1) -> Ticket:
        self.runs += 1
        document = {
            "name": "poison", "entrypoint": f"python poison.py {arguments}", "model_dir": "code", "max_restarts": 0,
            "resources": {"slots_per_trial": slots},
        }  # fmt: skip
        key = TrialKey(dag_id="dag", run_id=str(self.runs), task_id="train")
        ticket = submit(self.hook, render(self.hook, document, None, CODE), key=key, folder=CODE)
        revive(self.hook.store, ticket)
        return ticket

    async def follow(self, ticket: Ticket) -> Runtime:
        return await take_over(self.hook, ticket.trial_id, TaskLog(logging.getLogger("engine"), 10**6), watcher="test")

    async def carry(self, ticket: Ticket) -> Outcome:
        outcome = await asyncio.wait_for(
            AttemptRunner(await self.follow(ticket)).run(BackgroundRecovery(self.hook)), 240
        )
        assert outcome is not None
        return outcome

    def gaps(self, ticket: Ticket) -> list[Any]:
        attempt_id = self.hook.store.trials.get(ticket.trial_id).attempt_id
        return [event.body for event in self.hook.store.events.of_attempt(attempt_id, kinds=("gap",))]

    def held(self) -> list[Any]:
        return [slot for slot in self.hook.store.hosts.slots() if slot.allocation_id is not None]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Engine]:
    monkeypatch.setenv("HOME", str(tmp_path))
    options = dataclasses.replace(
        settings(), sql_alchemy_conn=new_sqlite(tmp_path / "dtrain.db"), checkpoint_dir=tmp_path / "checkpoints",
        kill_grace_s=2.0, **getattr(request, "param", {}),
    )  # fmt: skip
    hook = DtrainHook(options)
    hook.links.close_all()
    register(hook, tmp_path / "state")
    yield Engine(hook)
    hook.links.close_all()


async def test_a_poisoned_events_file_becomes_gaps_and_the_reports_between_them_are_stored(engine: Engine) -> None:
    ticket = engine.submit("corrupt")
    outcome = await engine.carry(ticket)
    assert outcome.state == "completed"
    steps = [row.step for row in engine.hook.store.metrics.of_trial(ticket.trial_id)]
    assert steps == list(range(18)), "every report behind a poisoned line"
    gaps = engine.gaps(ticket)
    assert {gap["code"] for gap in gaps} == {"corrupt", "invalid", "missing"}
    assert len(gaps) == 18
    assert sum(gap["bytes"] for gap in gaps if gap["code"] == "missing") > 5 << 20
    assert engine.held() == []


async def test_an_events_file_without_an_end_of_line_ends_as_a_gap(engine: Engine) -> None:
    ticket = engine.submit("unfinished")
    assert (await engine.carry(ticket)).state == "completed"
    assert [gap["bytes"] for gap in engine.gaps(ticket)] == [3 << 20]
    assert len(engine.hook.store.metrics.of_trial(ticket.trial_id)) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("engine", [{"attempt_metric_rows_limit": 5000}], indirect=True)
async def test_a_rank_that_reports_100_000_times_is_bounded_and_ends_soon_after_its_ranks(engine: Engine) -> None:
    ticket = engine.submit("many")
    outcome = await engine.carry(ticket)
    ended_at = time.time()
    assert outcome.state == "completed"
    (rank,) = engine.hook.store.events.ranks(engine.hook.store.trials.get(ticket.trial_id).attempt_id)
    assert rank.exited_at is not None
    lag_s = ended_at - rank.exited_at.timestamp()
    logging.getLogger("engine").info("the trial ended %.1f s after its rank", lag_s)
    assert lag_s < 120
    rows = engine.hook.store.metrics.of_trial(ticket.trial_id)
    assert [sum(row.group == group for row in rows) for group in ("training", "validation")] == [5000, 1]
    (gap,) = engine.gaps(ticket)
    assert (gap["code"], gap["lines"]) == ("attempt_metric_rows_limit", 95_000)
    view = engine.hook.store.attempts.get(engine.hook.store.trials.get(ticket.trial_id).attempt_id)
    assert "attempt_metric_rows_limit (5,000 metric rows of one attempt) is reached" in view.reason


@pytest.mark.nightly
async def test_recovery_salvages_past_poison_and_an_innocent_trial_behind_it_runs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned = [engine.submit("corrupt 2"), engine.submit("corrupt 2")]
    for ticket in poisoned:
        # Its follower dies once the ranks run.
        dying = asyncio.ensure_future(AttemptRunner(await engine.follow(ticket)).run(BackgroundRecovery(engine.hook)))
        await until(lambda ticket=ticket: bool(engine.hook.store.events.ranks(ticket.attempt_id)))
        await until(lambda ticket=ticket: engine.hook.store.attempts.get(ticket.attempt_id).state == "running")
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
    assert len(engine.held()) == 2
    innocent = engine.submit("nothing", slots=2)
    store = engine.hook.store
    with store.db.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE attempts SET renewed_at = '2026-01-01 00:00:00.000000'")
    outcome = await engine.carry(innocent)
    assert outcome.state == "completed"
    assert [store.trials.get(ticket.trial_id).state for ticket in poisoned] == ["completed", "completed"]
    assert [len(store.metrics.of_trial(ticket.trial_id)) for ticket in poisoned] == [18, 18]


@pytest.mark.nightly
async def test_an_attempt_that_cannot_be_read_at_all_is_fenced_and_frees_its_slots(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = engine.submit("nothing 60")
    dying = asyncio.ensure_future(AttemptRunner(await engine.follow(ticket)).run(BackgroundRecovery(engine.hook)))
    await until(lambda: engine.hook.store.attempts.get(ticket.attempt_id).state == "running")
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)

    async def breaks(*_: Any) -> Any:
        raise RecursionError("a defect that no test knew")

    monkeypatch.setattr(GangFollower, "run", breaks)
    look, store = RecoveryPass(engine.hook), engine.hook.store
    await look._salvage(store, store.attempts.get(ticket.attempt_id), {})
    trial = store.trials.get(ticket.trial_id)
    assert (trial.state, (trial.failure or {})["error"]) == ("errored", "HostProtocolError")
    assert "RecursionError" in (trial.failure or {})["message"]
    assert engine.held() == []


@pytest.mark.nightly
async def test_a_host_that_keeps_breaking_the_protocol_ends_its_part_with_the_cause(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "RECONNECT_FIRST_S", 0.05)

    def breaks(document: Any, raw: bytes) -> Frame:
        raise ValueError("bytes that no parser knows")

    monkeypatch.setattr(Frame, "parse", breaks)
    ticket = engine.submit("nothing 300")
    outcome = await engine.carry(ticket)
    assert outcome.state == "errored"
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.kind) == ("HostProtocolError", "infra")
    assert "broke the protocol 5 times, its part of the run is ended" in outcome.failure.message
    assert engine.held() == []


async def until(condition: Any, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
