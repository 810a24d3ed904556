"""A host that cuts its events file again and again, on each database."""

from __future__ import annotations

import asyncio
import json
import zlib
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt import stream as streaming
from airflow_provider_dtrain.engine.attempt.event_intake import RESTARTS_MOST, AttemptQuota
from airflow_provider_dtrain.engine.attempt.stream import BREACHES_MOST, HostFollower
from airflow_provider_dtrain.errors import HostLostError, HostProtocolError, HostUnreachableError
from airflow_provider_dtrain.hosts.wire import Frame
from testbed.stores import host
from tests.support.host_followers import host_follower
from tests.support.log_world import no_secrets

RUN, STREAM = "t1.1.1", "rank0.events"
MOST_CONNECTIONS = 30
LIMITS = dict.fromkeys(
    [f"attempt_{name}_limit" for name in ("events", "checkpoints", "metric_rows", "metric_names")], 0
)


def report(step: int) -> bytes:
    body = json.dumps({"seq": 1, "at": 1.0, "kind": "report", "step": step, "metrics": {"loss": 0.5}}).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


class Cutting:
    """Channel of a host that restarts a file ``restarts`` times in each connection, with another line each time.

    It reports the run as lost after ``MOST_CONNECTIONS``.
    """

    alive = True
    clock_offset_s = 0.0
    hello = SimpleNamespace(boot_id="boot")

    def __init__(self, restarts: int) -> None:
        self.restarts, self.connections, self.steps = restarts, 0, 0

    def _line(self, **fields: Any) -> Frame:
        self.steps += 1
        return Frame(t="data", run=RUN, stream=STREAM, data=report(self.steps), **fields)

    def frames(self, offset: int) -> list[Frame]:
        found: list[Frame] = [] if offset else [self._line()]
        for epoch in range(1, self.restarts + 1):
            end = found[-1].end if found else offset
            found.append(Frame(t="gap", run=RUN, stream=STREAM, offset=end, epoch=epoch, reason="it is empty"))
            found.append(self._line(epoch=epoch))
        return found

    def subscribe(self, run: str, offsets: Any, sink: Any, **_: Any) -> Future[Any]:
        self.connections += 1
        if self.connections > MOST_CONNECTIONS:
            raise HostLostError("h1", "It was never given up.")
        lost = Frame(t="lost", run=run, error=HostUnreachableError("h1", "cut"))
        for frame in [*self.frames(offsets.get(STREAM, 0)), lost]:
            sink(frame)
        answer: Future[Any] = Future()
        answer.set_result({})
        return answer

    def unsubscribe(self, run: str, sink: Any) -> None:
        """Stop taking frames."""

    def ack(self, run: str, stream: str, offset: int) -> None:
        """Forget the frame."""


def follower(store: Any, attempt_id: int, watch: int, channel: Cutting) -> HostFollower:
    """Return a follower of an attempt in a store whose host is reached through this channel."""

    async def link(_: str) -> Any:
        return channel

    async def db(method: Any, *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    async def nothing(*_: Any, **__: Any) -> bool:
        return False

    log = SimpleNamespace(**dict.fromkeys(("warning", "info", "event"), lambda *_, **__: None))
    rt: Any = SimpleNamespace(
        link=link, db=db, redactor=no_secrets, store=store, attempt_id=attempt_id, watch=watch,
        note_host=nothing, is_held=nothing,
        lost_after_s=900.0, log=log, settings=SimpleNamespace(orphan_timeout_s=900.0, **LIMITS),
        logs=SimpleNamespace(wanted=False, begin_of=lambda view, offset: offset),
    )  # fmt: skip
    plan = {"boots": {"h1": "boot"}, "plans": {"h1": {"ranks": [{"rank": 0}]}}}
    return host_follower(rt, "h1", run=RUN, plan=plan, quota=AttemptQuota(rt))


@pytest.mark.parametrize("restarts", [1, 20])
async def test_a_file_that_is_cut_again_and_again_ends_the_hosts_part_and_the_refusal_is_stored(
    store, submit, start, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    monkeypatch.setattr(streaming, "RECONNECT_FIRST_S", 0.001)
    store.hosts.add(host("h1", 2))
    ticket = submit()
    channel = Cutting(restarts)
    it = follower(store, ticket.attempt_id, start(ticket), channel)
    async with asyncio.timeout(60):
        await it.run()
    lost = it.gang.end.lost["h1"]
    assert isinstance(lost, HostProtocolError), lost
    assert f"broke the protocol {BREACHES_MOST} times" in str(lost)
    assert f"The file {STREAM} of host 'h1' was restarted more than {RESTARTS_MOST} times." in str(lost)
    assert channel.connections <= RESTARTS_MOST + BREACHES_MOST
    *restarted, refused = store.events.of_attempt(ticket.attempt_id, kinds=["gap"])
    assert [gap.body["epoch"] for gap in restarted] == list(range(1, RESTARTS_MOST + 1))
    assert (refused.body["code"], refused.body["bytes"], refused.stream) == ("restarted", 0, STREAM)
    assert f"restarted more than {RESTARTS_MOST} times" in refused.body["reason"]
    assert store.events.epochs(ticket.attempt_id) == {("h1", STREAM): RESTARTS_MOST}


async def test_a_process_that_takes_over_counts_the_restarts_that_are_stored(
    store, submit, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "RECONNECT_FIRST_S", 0.001)
    store.hosts.add(host("h1", 2))
    ticket = submit()
    watch = start(ticket)
    for _ in range(2):
        async with asyncio.timeout(60):
            await follower(store, ticket.attempt_id, watch, Cutting(20)).run()
    assert len(store.events.of_attempt(ticket.attempt_id, kinds=["report"])) == 1 + RESTARTS_MOST
    assert len(store.events.of_attempt(ticket.attempt_id, kinds=["gap"])) == RESTARTS_MOST + 1
