"""Every source of slots keeps the same promises to the engine: today the queue in the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.attempt.queue_slots import QueueSlots
from airflow_provider_dtrain.engine.attempt.slot_port import Granted, Never, SlotPort, Waiting
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Killed, Runtime
from airflow_provider_dtrain.errors import StaleWatchError
from airflow_provider_dtrain.hooks.settings import settings
from testbed.stores import host

#: Seconds after which a test has failed. Shorter than the time after which a request is renewed.
SOON_S = 15.0


class QueueSource:
    """Two hosts of two slots each, whose slots the queue grants.

    Another implementation of the port passes the tests when its source has the same methods.
    """

    def __init__(self, store: Any, submit: Callable[..., Any]) -> None:
        self.store, self.submit = store, submit
        self.hook: Any = SimpleNamespace(settings=settings(), store=store)
        for name in ("h1", "h2"):
            store.hosts.add(host(name, 2))

    def attempt(self, slots: int, **options: Any) -> Runtime:
        """Return the follower of a new attempt that needs slots."""
        return self.follower(self.submit(slots=slots, **options).attempt_id)

    def follower(self, attempt_id: int) -> Runtime:
        """Return a new follower of an attempt."""
        watch = self.store.attempts.watch(attempt_id, watcher="test")
        log = TaskLog(logging.getLogger("test"), None)
        return Runtime(self.hook, self.store, attempt_id, watch, log, watcher="test")

    def port(self, rt: Runtime) -> SlotPort:
        """Return the port of a follower's attempt."""
        return QueueSlots(rt)

    def shrink(self) -> None:
        """Take away so many slots that two are left."""
        self.store.hosts.remove("h2")


@pytest.fixture(params=["queue"])
def source(request: pytest.FixtureRequest, store: Any, submit: Callable[..., Any]) -> QueueSource:
    return QueueSource(store, submit)


def held(answer: object) -> set[tuple[str, int]]:
    assert isinstance(answer, Granted), answer
    return {(host, index) for host, indices in answer.slots.items() for index in indices}


@pytest.mark.parametrize(("slots", "hosts"), [(1, 1), (2, 1), (4, 2)])
async def test_a_request_that_fits_is_granted_and_holds_its_hosts(source: QueueSource, slots: int, hosts: int) -> None:
    port = source.port(source.attempt(slots))
    answer = await port.request()
    assert len(held(answer)) == slots
    assert isinstance(answer, Granted)
    assert len(answer.slots) == hosts
    assert await port.uncleared() == set(answer.slots)


async def test_a_granted_request_that_is_repeated_has_the_same_slots_for_every_follower(source: QueueSource) -> None:
    rt = source.attempt(2)
    first = await source.port(rt).request()
    assert await source.port(rt).request() == first
    assert await source.port(source.follower(rt.attempt_id)).request() == first


async def test_no_slot_is_granted_twice_and_a_request_that_waits_has_a_reason(source: QueueSource) -> None:
    ports = [source.port(source.attempt(2)) for _ in range(3)]
    first, second, third = [await port.request() for port in ports]
    assert held(first) & held(second) == set()
    assert isinstance(third, Waiting)
    assert third.reason
    assert not third.is_paused
    assert await ports[2].uncleared() == set()


async def test_released_slots_are_granted_to_the_request_that_waits_and_wake_it(source: QueueSource) -> None:
    port, waiting = source.port(source.attempt(4)), source.port(source.attempt(2))
    granted = await port.request()
    assert isinstance(await waiting.request(), Waiting)
    change = asyncio.ensure_future(waiting.changed())
    await port.release([host for host, _ in held(granted)], proof="untaken")
    await asyncio.wait_for(change, SOON_S)
    assert held(await waiting.request()) <= held(granted)


async def test_the_slots_of_a_host_that_has_not_confirmed_stay_held(source: QueueSource) -> None:
    port, waiting = source.port(source.attempt(4)), source.port(source.attempt(4))
    await port.request()
    for _ in range(2):
        await port.release(["h1"], proof="clear")
        assert await port.uncleared() == {"h2"}
    assert isinstance(await waiting.request(), Waiting)
    await port.release(["h2"], proof="clear")
    assert await port.uncleared() == set()
    assert len(held(await waiting.request())) == 4


async def test_a_request_that_no_slots_can_ever_serve_is_refused_with_the_reason(source: QueueSource) -> None:
    port = source.port(source.attempt(4))
    source.shrink()
    answers = [await port.request(), await port.request()]
    assert [type(answer) for answer in answers] == [Never, Never]
    assert "4 slots" in answers[0].reason  # type: ignore[union-attr]


async def test_a_paused_request_holds_nothing_and_says_so(source: QueueSource) -> None:
    rt = source.attempt(1)
    view = await rt.view()
    source.store.control.pause(view.trial_id, by="ann")
    answer = await source.port(rt).request()
    assert isinstance(answer, Waiting)
    assert answer.is_paused
    assert await source.port(rt).uncleared() == set()


async def test_a_follower_that_was_replaced_neither_requests_nor_releases(source: QueueSource) -> None:
    rt = source.attempt(2)
    old, new = source.port(rt), source.port(source.follower(rt.attempt_id))
    with pytest.raises(StaleWatchError):
        await old.request()
    granted = await new.request()
    assert isinstance(granted, Granted)
    with pytest.raises(StaleWatchError):
        await old.release(list(granted.slots), proof="untaken")
    assert await new.uncleared() == set(granted.slots)


async def test_a_kill_ends_the_wait_for_slots(source: QueueSource) -> None:
    await source.port(source.attempt(4)).request()
    rt = source.attempt(1)
    port = source.port(rt)
    assert isinstance(await port.request(), Waiting)
    change = asyncio.ensure_future(port.changed())
    await asyncio.sleep(0)
    rt.kill()
    with pytest.raises(Killed):
        await asyncio.wait_for(change, SOON_S)
