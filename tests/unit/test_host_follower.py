"""A follower's connections to one host: when it waits longer, and when it gives the host up."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt import stream as streaming
from airflow_provider_dtrain.engine.attempt.stream import BREACHES_MOST, HostFollower
from airflow_provider_dtrain.errors import HostError, HostProtocolError, HostUnreachableError
from airflow_provider_dtrain.hosts.wire import Frame
from tests.support.host_followers import host_follower
from tests.support.log_world import no_secrets


class Link:
    """A channel that answers a subscription, sends these frames and ends with an error."""

    alive = True
    clock_offset_s = 0.0
    hello = SimpleNamespace(boot_id="boot")

    def __init__(self, error: HostError, frames: list[Frame]) -> None:
        self.error, self.frames = error, frames

    def subscribe(self, run: str, offsets: Any, sink: Any, **_: Any) -> Future[Any]:
        for frame in [*self.frames, Frame(t="lost", run=run, error=self.error)]:
            sink(frame)
        answer: Future[Any] = Future()
        answer.set_result({})
        return answer

    def unsubscribe(self, run: str, sink: Any) -> None:
        """Stop taking frames."""

    def ack(self, run: str, stream: str, offset: int) -> None:
        """Forget the frame."""


class Store:
    """A store without anything of the run."""

    def __init__(self) -> None:
        self.events = self

    def offsets(self, attempt_id: int) -> dict[Any, int]:
        return {}

    epochs = offsets

    def commit(self, *_: Any, **__: Any) -> list[Any]:
        return []


def follower(error: HostError, frames: list[Frame] | None = None) -> HostFollower:
    """Return a follower whose every connection ends with an error."""

    async def link(host: str) -> Any:
        return Link(error, frames or [])

    async def db(method: Any, *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    async def nothing(*_: Any) -> bool:
        return False

    words = dict.fromkeys(("warning", "info", "debug", "error"), lambda *_: None)
    rt = SimpleNamespace(
        link=link, db=db, redactor=no_secrets, store=Store(), attempt_id=1, watch=1, note_host=nothing,
        is_held=nothing, lost_after_s=900.0,
        log=SimpleNamespace(**words), settings=SimpleNamespace(orphan_timeout_s=900.0),
        logs=SimpleNamespace(wanted=True, begin_of=lambda view, offset: offset),
    )  # fmt: skip
    return host_follower(rt, "h", run="t1.1.1", plan={"boots": {"h": "boot"}})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "RECONNECT_FIRST_S", 0.001)


async def waits(it: HostFollower, count: int) -> list[float]:
    """Return how long a follower waits before each of its next connections."""
    found: list[float] = []
    back_off = it._back_off

    async def noted(error: HostError) -> None:
        found.append(it.wait_s)
        await back_off(error)
        if len(found) == count:
            it.gang.end.ended["h"] = "enough"

    it._back_off = noted  # type: ignore[method-assign]
    async with asyncio.timeout(60):
        await it.run()
    return found


async def test_connections_that_bring_nothing_come_further_and_further_apart() -> None:
    found = await waits(follower(HostUnreachableError("h", "cut")), 6)
    assert found == [pytest.approx(0.001 * 2**n) for n in range(6)]


async def test_a_connection_that_brings_something_is_followed_by_a_short_wait() -> None:
    news = Frame(t="gap", run="t1.1.1", stream="supervisor.events", offset=0, skip_bytes=5)
    found = await waits(follower(HostUnreachableError("h", "cut"), [news]), 4)
    assert found == [pytest.approx(0.001)] * 4


async def test_recovery_takes_no_lines_that_the_host_still_sends_to_the_follower_before_it() -> None:
    """Both may share a connection. The task log of another trial would get them, and the trial's own never."""
    line = Frame(t="data", run="t1.1.1", stream="rank0.log", offset=0, data=b"line\n")
    anew = Frame(t="gap", run="t1.1.1", stream="rank0.log", offset=0, epoch=1)
    it = follower(HostUnreachableError("h", "cut"), [line, anew])
    opened: list[Any] = []
    it.rt.logs.wanted = False  # type: ignore[misc]
    it.rt.logs.follow = lambda *place: opened.append(place)  # type: ignore[method-assign]
    await waits(it, 2)
    assert opened == []


async def test_a_host_that_begins_a_log_again_and_again_is_given_up() -> None:
    async def nothing(**_: Any) -> None:
        """Commit nothing."""

    frames = []
    for epoch in range(3):
        frames.append(Frame(t="data", run="t1.1.1", stream="rank0.log", offset=0, epoch=epoch, data=b"line\n"))
        frames.append(Frame(t="gap", run="t1.1.1", stream="rank0.log", offset=5, epoch=epoch + 1))
    it = follower(HostUnreachableError("h", "cut"), frames)
    it.rt.log.event = lambda *_, **__: None  # type: ignore[method-assign]
    log = SimpleNamespace(received=0, commit=nothing, take=lambda *_: None, restart=lambda **_: None)
    it.rt.logs.follow = lambda *_: log  # type: ignore[method-assign, assignment, return-value]
    async with asyncio.timeout(60):
        await it.run()
    assert "restarted rank0.log more than 8 times" in str(it.gang.end.lost["h"])


async def test_a_host_that_keeps_breaking_the_protocol_is_given_up_with_the_cause() -> None:
    it = follower(HostProtocolError("h", "a line that is no JSON"))
    async with asyncio.timeout(60):
        await it.run()
    assert it.gang.end.ended == {"h": "lost"}
    lost = it.gang.end.lost["h"]
    assert isinstance(lost, HostProtocolError)
    assert f"broke the protocol {BREACHES_MOST} times" in str(lost)
    assert "a line that is no JSON" in str(lost)


async def test_breaches_that_are_far_apart_are_not_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BREACHES_WITHIN_S", 0.0)
    found = await waits(follower(HostProtocolError("h", "no JSON")), BREACHES_MOST + 2)
    assert len(found) == BREACHES_MOST + 2


async def test_a_frame_that_a_defect_cannot_handle_is_a_breach_and_no_crash() -> None:
    it = follower(HostUnreachableError("h", "cut"), [Frame(t="data", run="t1.1.1", stream=None)])
    async with asyncio.timeout(60):
        await it.run()
    assert "cannot be handled" in str(it.gang.end.lost["h"])


@pytest.mark.parametrize(
    "wrong",
    [{"t": "data", "offset": 7, "data": b"x"}, {"t": "gap", "offset": 7, "skip_bytes": 1}, {"t": "gap", "epoch": 2}],
)
async def test_a_frame_that_does_not_continue_the_log_breaks_the_protocol(wrong: dict[str, Any]) -> None:
    frame = Frame(run="t1.1.1", stream="rank0.log", **wrong)
    it = follower(HostUnreachableError("h", "cut"), [frame])
    async with asyncio.timeout(60):
        await it.run()
    assert "expected byte 0 of epoch" in str(it.gang.end.lost["h"])


async def test_many_events_of_one_frame_leave_turns_to_other_coroutines(monkeypatch: pytest.MonkeyPatch) -> None:
    it, turns = follower(HostUnreachableError("h", "cut")), list[int]()
    taken: list[Any] = []

    async def commit(*_: Any) -> list[Any]:
        return [{"kind": "validation"}] * 100

    def take(*event: Any) -> None:
        taken.append(event)

    async def beat() -> None:
        while len(taken) < 100:
            turns.append(len(taken))
            await asyncio.sleep(0)

    monkeypatch.setattr(streaming, "TURN_S", -1.0)
    it.intake.commit = commit  # type: ignore[assignment, method-assign]
    it.on_event = take
    beating = asyncio.ensure_future(beat())
    link: Any = SimpleNamespace(clock_offset_s=0.0)
    await it._commit_events(link, Frame(t="data", run="r", stream="rank0.events"))
    await beating
    assert len(turns) > 90
