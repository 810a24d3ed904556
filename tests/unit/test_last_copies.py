"""Control requests end the wait for the last copies, and a gang that has not failed keeps no slots for them."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig
from airflow_provider_dtrain.engine.attempt import runner as attempt
from airflow_provider_dtrain.engine.attempt.gang import GangEnd
from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from airflow_provider_dtrain.engine.copies import last
from airflow_provider_dtrain.engine.copies.last import until_copied
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import HandedOver, Killed, Runtime
from airflow_provider_dtrain.store.records.queue import PendingControlRequests

#: Seconds after which a test has failed: the requests must act within seconds.
SOON_S = 10.0
VIEW: Any = SimpleNamespace(
    experiment_id=1,
    trial_id=1,
    attempt_id=1,
    number=1,
    run="t1.1.1",
    state="running",
    is_held_gang=False,
    backend="hosts",
    placement={},
    plan=None,
    created_at=datetime.now(UTC),
    granted_at=None,
)


class FakeStore:
    def __init__(self) -> None:
        self.asked = PendingControlRequests()
        self.attempts = self.control = self

    def pending(self, attempt_id: int) -> PendingControlRequests:
        return self.asked

    def get(self, attempt_id: int) -> Any:
        return VIEW

    def renew(self, watches: dict[int, int]) -> set[int]:
        return set()


@pytest.fixture
def rt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    monkeypatch.setattr(last, "CHECK_S", 0.01)
    monkeypatch.setattr("airflow_provider_dtrain.engine.session.runtime.CONTROL_CHECK_S", 0.0)
    hook: Any = SimpleNamespace(settings=SimpleNamespace(checkpoint_dir=tmp_path, output_sync_period_s=0.0))
    store: Any = FakeStore()
    return Runtime(hook, store, 1, 1, TaskLog(logging.getLogger("test"), None), watcher="test")


class Copies:
    """Copies that never end."""

    def __init__(self) -> None:
        self.begun, self.cancelled = asyncio.Event(), False

    async def run(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@pytest.mark.parametrize("end", ["kill by a user", "kill by Airflow", "handover"])
async def test_a_kill_or_a_handover_ends_copies_that_never_end(rt: Runtime, end: str) -> None:
    copies = Copies()
    waiting = asyncio.ensure_future(until_copied(rt, copies.run()))
    await asyncio.wait_for(copies.begun.wait(), SOON_S)
    match end:
        case "kill by a user":
            rt.store.asked = PendingControlRequests(kill_by="ann")  # type: ignore[attr-defined]
        case "kill by Airflow":
            rt.kill()
        case "handover":
            rt.hand_over()
    with pytest.raises(HandedOver if end == "handover" else Killed):
        await asyncio.wait_for(waiting, SOON_S)
    assert copies.cancelled


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("stop", "a user stopped the trial"),
        ("deadline", "execution_timeout has passed"),
        ("gang", "held gang of this trial has ended: hold_for"),
    ],
)
async def test_a_stop_or_a_timeout_ends_the_wait_and_leaves_the_outcome_to_the_ranks(
    rt: Runtime, end: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    copies = Copies()
    waiting = asyncio.ensure_future(until_copied(rt, copies.run()))
    await asyncio.wait_for(copies.begun.wait(), SOON_S)
    # The first check has read the requests by now.
    await rt.db(rt.store.control.pending, 1)
    match end:
        case "stop":
            while rt.control_requests is not rt.store.asked:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            rt.store.asked = PendingControlRequests(stop_by="ann")  # type: ignore[attr-defined]
        case "deadline":
            rt.deadline = time.time() - 1.0
        case "gang":
            rt.store.asked = PendingControlRequests(gang_ended="hold_for")  # type: ignore[attr-defined]
    await asyncio.wait_for(waiting, SOON_S)
    assert copies.cancelled
    assert words in caplog.text
    assert "stay on their hosts" in caplog.text


async def test_a_stop_from_before_waits_for_the_checkpoint_that_it_caused(rt: Runtime) -> None:
    rt.store.asked = PendingControlRequests(stop_by="ann")  # type: ignore[attr-defined]
    copied = []

    async def copy() -> None:
        for _ in range(5):
            await rt.db(rt.store.control.pending, 1)
            await asyncio.sleep(2 * last.CHECK_S)
        copied.append(1)

    await asyncio.wait_for(until_copied(rt, copy()), SOON_S)
    assert copied == [1]


async def test_slots_that_are_held_wait_for_a_limited_time(rt: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    copies = Copies()
    await asyncio.wait_for(until_copied(rt, copies.run(), most_s=0.05), SOON_S)
    assert copies.cancelled
    assert "they took more than 0.05 s" in caplog.text


class FakeGang:
    """Gang whose ranks have ended."""

    reason = "completed"

    def __init__(self, *_: Any, **__: Any) -> None:
        self.end = GangEnd(ended={"gpu-01": self.reason})
        self.gang = SimpleNamespace(links={})

    async def run(self) -> GangEnd:
        return self.end


@pytest.fixture
def world(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a runner whose ranks have ended and whose copies never end, and record the order of its steps."""
    world = SimpleNamespace(steps=[], copies=Copies(), runner=AttemptRunner(rt), rt=rt)

    async def release(rt: Runtime, view: Any) -> list[str]:
        world.steps.append("release")
        return []

    async def nothing(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(config=ExperimentConfig())

    async def after(job: Any, gang: Any, collector: Any) -> None:
        world.steps.append("after")

    async def copy() -> None:
        world.steps.append("copy")
        await world.copies.run()

    part = SimpleNamespace(run=copy, close=lambda: None, copy_last=nothing)
    idle = SimpleNamespace(run=nothing, close=lambda: None, copy_last=nothing)
    monkeypatch.setattr(attempt.teardown, "release", release)
    monkeypatch.setattr(attempt, "CheckpointCopier", lambda *_: part)
    monkeypatch.setattr(attempt, "OutputKeeper", lambda *_: idle)
    monkeypatch.setattr(attempt, "TensorboardKeeper", lambda *_, **__: idle)
    monkeypatch.setattr(attempt, "GangFollower", FakeGang)
    monkeypatch.setattr(attempt, "job_of", nothing)
    monkeypatch.setattr(world.runner, "_after", after)
    rt.logs = SimpleNamespace(end=lambda view: None)  # type: ignore[assignment]
    return world


async def test_a_gang_that_completed_releases_its_slots_before_the_last_copies_and_hears_a_kill(
    world: SimpleNamespace,
) -> None:
    following = asyncio.ensure_future(world.runner._follow_run(VIEW, None))
    async with asyncio.timeout(SOON_S):
        await world.copies.begun.wait()
        while "release" not in world.steps:
            await asyncio.sleep(0.01)
    world.rt.kill()
    with pytest.raises(Killed):
        await asyncio.wait_for(following, SOON_S)
    assert "after" not in world.steps


async def test_a_gang_that_failed_holds_its_slots_for_the_last_copies_for_a_limited_time(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeGang, "reason", "lost")
    monkeypatch.setattr(attempt, "SLOTS_WAIT_S", 0.05)
    await asyncio.wait_for(world.runner._follow_run(VIEW, None), SOON_S)
    assert world.steps == ["copy", "after"]
    assert world.copies.cancelled
