"""Slow hosts delay neither a control request during a start nor calls beside their copies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt import launch
from airflow_provider_dtrain.engine.attempt.host_calls import send_archives
from airflow_provider_dtrain.engine.copies.checkpoints import CheckpointCopier
from airflow_provider_dtrain.engine.copies.outputs import OutputKeeper, carried_to
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import HandedOver, Killed, Runtime, Stopped, TimedOut
from airflow_provider_dtrain.errors import GangEndedError, HostUnreachableError
from airflow_provider_dtrain.store.records.queue import PendingControlRequests

#: Seconds after which a test has failed.
LATEST_S = 10.0
#: More copies than any pool has threads.
MANY = 40


def attempt(number: int) -> Any:
    plan = {"plans": {"a": {"group_rank": 0, "run": f"t1.{number}.1"}}, "master": {"host": "a"}}
    return SimpleNamespace(
        attempt_id=number, number=number, trial_id=1, experiment_id=1, draw=0, run=f"t1.{number}.1", plan=plan,
        placement={"a": (0,)},
    )  # fmt: skip


class FakeStore:
    def __init__(self) -> None:
        self.asked, self.renewed = PendingControlRequests(), threading.Event()
        self.attempts = self.events = self.control = self
        self.hosts = SimpleNamespace(get=lambda name: SimpleNamespace(name=name))

    def of_trial(self, trial_id: int) -> list[Any]:
        return [attempt(1), attempt(2)]

    def of_attempt(self, attempt_id: int, *, kinds: Any) -> list[Any]:
        return []

    def pending(self, attempt_id: int) -> PendingControlRequests:
        return self.asked

    def renew(self, watches: dict[int, int]) -> set[int]:
        self.renewed.set()
        return set()


class SlowHost:
    """Host that sends and takes nothing until the end of the test."""

    host = "a"

    def __init__(self) -> None:
        self.is_asked, self.is_over, self.times_asked = threading.Event(), threading.Event(), 0

    @contextlib.contextmanager
    def transfer(self, *_: Any, **__: Any) -> Iterator[Any]:
        self.times_asked += 1
        self.is_asked.set()
        self.is_over.wait(60.0)
        raise HostUnreachableError("a", "The host sends nothing.")
        yield

    outputs = fetching = transfer

    def send(self, *_: Any) -> None:
        with self.transfer():
            pass

    def call(self, command: str, **_: Any) -> Future[Any]:
        """Return the answer to the command ``have``."""
        future: Future[Any] = Future()
        future.set_result({"missing": ["digest"]})
        return future

    send_archive = send


@pytest.fixture
def host() -> Iterator[SlowHost]:
    slow = SlowHost()
    yield slow
    slow.is_over.set()


@pytest.fixture
def rt(tmp_path: Path, host: SlowHost, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    monkeypatch.setattr("airflow_provider_dtrain.engine.session.runtime.CONTROL_CHECK_S", 0.1)

    async def address(record: Any) -> None:
        """Return no address, because the link needs none."""

    options = SimpleNamespace(
        checkpoint_dir=tmp_path,
        checkpoint_copy_limit_bytes=100,
        trial_copy_limit_bytes=100,
        output_sync_period_s=0.0,
    )
    store: Any = FakeStore()
    hook: Any = SimpleNamespace(
        settings=options, store=store, link=lambda *_: host, aaddress=address, open_link=lambda _: None
    )
    return Runtime(hook, store, 2, 1, TaskLog(logging.getLogger("test"), None), watcher="test")


async def until(event: threading.Event) -> None:
    async with asyncio.timeout(LATEST_S):
        while not event.is_set():
            await asyncio.sleep(0.01)


# -- control requests ------------------------------------------------------------------------------
REQUESTS = {
    "kill by Airflow": Killed, "kill by a user": Killed, "stop": Stopped, "deadline": TimedOut, "handover": HandedOver,
    "gang": GangEndedError,
}  # fmt: skip


@pytest.mark.parametrize("request_of", REQUESTS)
async def test_a_control_request_ends_a_start_that_waits_for_outputs_of_a_slow_host(
    rt: Runtime, host: SlowHost, request_of: str
) -> None:
    waiting = asyncio.ensure_future(carried_to(rt, attempt(3)))
    await until(host.is_asked)
    store: Any = rt.store
    match request_of:
        case "kill by Airflow":
            rt.kill()
        case "kill by a user":
            store.asked = PendingControlRequests(kill_by="ann")
        case "stop":
            store.asked = PendingControlRequests(stop_by="ann")
        case "deadline":
            rt.deadline = time.time() - 1.0
        case "handover":
            rt.hand_over()
        case "gang":
            store.asked = PendingControlRequests(gang_ended="hold_for")
    with pytest.raises(REQUESTS[request_of]):
        await asyncio.wait_for(waiting, LATEST_S)


async def test_a_start_that_waits_too_long_for_outputs_begins_without_them(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_dtrain.engine.copies.outputs.CATCH_UP_S", 0.1)
    assert await asyncio.wait_for(carried_to(rt, attempt(3)), LATEST_S) is None


async def until_settled(host: SlowHost) -> None:
    """Return when no further thread has begun a transfer for a while."""
    await until(host.is_asked)
    before = 0
    while host.times_asked > before:
        before = host.times_asked
        await asyncio.sleep(0.3)


# -- threads ---------------------------------------------------------------------------------------
def transfer(kind: str, rt: Runtime, host: SlowHost) -> Any:
    """Return a transfer of files that the host delays."""
    job: Any = SimpleNamespace(checkpoint_source=1, weights_source=None, carried=None)
    link: Any = host
    match kind:
        case "outputs":
            return OutputKeeper(rt, attempt(1)).copy(is_final=False)
        case "checkpoint":
            copier: Any = object.__new__(CheckpointCopier)
            copier.rt, copier.view = rt, attempt(1)
            place = SimpleNamespace(path="checkpoints/step-1")
            return copier._copy(SimpleNamespace(host="a", trial_id=1, run="t1.1.1", step=1, size_bytes=1, place=place))
        case "checkpoint of a start":
            job.send_checkpoint = host.send
            return launch._send_files(job, {"a": link}, attempt(1).plan["plans"])
    archive: Any = SimpleNamespace(digest="digest", content=bytes)
    return send_archives(link, {"payloads": archive})


@pytest.mark.parametrize("kind", ["outputs", "checkpoint", "checkpoint of a start", "archive of a start"])
async def test_slow_transfers_delay_no_renewal(rt: Runtime, host: SlowHost, kind: str) -> None:
    transfers = [asyncio.ensure_future(transfer(kind, rt, host)) for _ in range(MANY)]
    await until_settled(host)
    store: Any = rt.store
    async with rt.renewing():
        await until(store.renewed)
    host.is_over.set()
    await asyncio.gather(*transfers, return_exceptions=True)


async def test_hosts_that_do_not_answer_delay_no_renewal(rt: Runtime, host: SlowHost) -> None:
    hook: Any = rt.hook
    hook.link = lambda *_: host.send()
    connections = [asyncio.ensure_future(rt.link(f"gpu-{number}")) for number in range(MANY)]
    await until_settled(host)
    store: Any = rt.store
    async with rt.renewing():
        await until(store.renewed)
    host.is_over.set()
    assert {type(one) for one in await asyncio.gather(*connections, return_exceptions=True)} == {HostUnreachableError}


async def test_an_open_channel_is_used_without_a_request_for_its_connection(rt: Runtime, host: SlowHost) -> None:
    hook: Any = rt.hook
    hook.link = hook.aaddress = None
    hook.open_link = lambda record: host
    assert await rt.link("a") is host


async def test_slow_copies_delay_no_start(rt: Runtime, host: SlowHost) -> None:
    copies = [asyncio.ensure_future(transfer("outputs", rt, host)) for _ in range(MANY)]
    await until_settled(host)
    other = SlowHost()
    other.is_over.set()
    with pytest.raises(HostUnreachableError):
        await asyncio.wait_for(transfer("checkpoint of a start", rt, other), LATEST_S)
    host.is_over.set()
    await asyncio.gather(*copies)


FORKED = """
import asyncio, os, sys, threading
from airflow_provider_dtrain.engine.session import threads

is_over = threading.Event()
POOLS = (threads.in_thread, threads.in_connect_thread, threads.in_copy_thread, threads.in_launch_thread)

async def all_pools(function):
    return [await call(function) for call in POOLS]

async def main():
    assert await all_pools(os.getpid) == 4 * [os.getpid()]
    slow = asyncio.ensure_future(threads.in_copy_thread(is_over.wait))
    await asyncio.sleep(0)
    return slow, os.fork()

loop = asyncio.new_event_loop()
slow, child = loop.run_until_complete(main())
if not child:
    # A forked process has none of its parent's threads.
    assert asyncio.run(all_pools(os.getpid)) == 4 * [os.getpid()]
    sys.exit(7)
status = os.waitpid(child, 0)[1]
is_over.set()
loop.run_until_complete(slow)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_process_has_threads_of_its_own_and_ends_without_those_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], timeout=60.0, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
