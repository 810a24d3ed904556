"""Every source of slots keeps the same promises to the engine: the queue in the store, for attempts and held gangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Killed, Runtime
from airflow_provider_dtrain.engine.slots.gang_slots import GangSlots, GangTurn, slots_of
from airflow_provider_dtrain.engine.slots.queue_slots import QueueSlots
from airflow_provider_dtrain.engine.slots.slot_port import Granted, Never, SlotPort, SlotRequest, Waiting
from airflow_provider_dtrain.errors import GangEndedError, StaleWatchError, StoreUnavailableError
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.store.records.gangs import GangView
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey, TrialSubmission
from testbed.stores import host
from tests.contract.gang_world import ask

#: Seconds after which a test has failed. Shorter than the time after which a request is renewed.
SOON_S = 15.0
LOG = TaskLog(logging.getLogger("test"), None)


class Source:
    """Two hosts of two slots each.

    Another implementation of the port passes the tests when its source has the same methods.
    """

    #: Requests of two slots that hold their slots at one time.
    at_once = 2

    def __init__(self, store: Any) -> None:
        self.store = store
        self.hook: Any = SimpleNamespace(settings=settings(), store=store)
        self.tasks = (f"task{number}" for number in count())
        for name in ("h1", "h2"):
            store.hosts.add(host(name, 2))

    def shrink(self) -> None:
        """Take away so many slots that two are left."""
        self.store.hosts.remove("h2")


class QueueSource(Source):
    """Attempts whose slots the queue grants."""

    def __init__(self, store: Any, submit: Callable[..., Ticket]) -> None:
        super().__init__(store)
        self.submit = submit

    def new(self, slots: int) -> Runtime:
        """Return the follower of a new attempt that needs slots."""
        return self.follower(self.submit(slots=slots).attempt_id)

    def follower(self, attempt_id: int) -> Runtime:
        watch = self.store.attempts.watch(attempt_id, watcher="test")
        return Runtime(self.hook, self.store, attempt_id, watch, LOG, watcher="test")

    def again(self, rt: Runtime) -> Runtime:
        """Return a new follower of the same attempt."""
        return self.follower(rt.attempt_id)

    def port(self, rt: Runtime) -> SlotPort:
        """Return the port of a follower's attempt."""
        return QueueSlots(rt)

    async def free(self, rt: Runtime) -> None:
        """Release all slots of the attempt, and end it."""
        port = self.port(rt)
        await port.release(sorted(await port.uncleared()), proof="untaken")
        self.end(rt)

    def end(self, rt: Runtime) -> None:
        """End the attempt, whose slots are released."""
        self.store.attempts.end(rt.attempt_id, rt.watch, state="killed", failure=None)


class TurnSource(QueueSource):
    """Trials that use one held gang, one after the other. The first trial determines its size."""

    at_once = 1

    def __init__(self, store: Any) -> None:
        super().__init__(store, self.submit_on_gang)
        self.gang: GangView | None = None

    def submit_on_gang(self, *, slots: int) -> Ticket:
        if self.gang is None:
            asked = ask(self.store, slots=slots)
            watch = self.store.gangs.watch(asked.allocation_id, watcher="sensor")
            self.store.queue.schedule("gpus")
            self.gang = self.store.gangs.take_up(asked.allocation_id, watch)
        assert self.gang is not None
        config = self.store.configs.put({"entrypoint": "python train.py"}, origins={})
        submission = TrialSubmission(
            key=TrialKey(dag_id="d", run_id="r", task_id=next(self.tasks)),
            experiment_name="e",
            config_id=config.config_id,
            pool="gpus",
            slots=slots,
            allocation_id=self.gang.allocation_id,
        )
        return self.store.gangs.submit_trial(submission, self.gang.token)

    def port(self, rt: Runtime) -> SlotPort:
        """Return the port of a follower's attempt."""
        return GangTurn(rt)

    def withdraw(self) -> None:
        """End the gang that the trials use."""
        assert self.gang is not None
        self.store.gangs.end(self.gang.allocation_id, "a user released it")


@dataclass(frozen=True)
class GangWatch:
    """One waiter for a held gang."""

    allocation_id: int
    watch: int


class GangSource(Source):
    """Tasks that each request a gang to hold it."""

    def new(self, slots: int) -> GangWatch:
        """Return the waiter of a new request for a gang."""
        self.newest = ask(self.store, slots=slots, task=next(self.tasks)).allocation_id
        return self.waiter(self.newest)

    def waiter(self, allocation_id: int) -> GangWatch:
        return GangWatch(allocation_id, self.store.gangs.watch(allocation_id, watcher="test"))

    def again(self, gang: GangWatch) -> GangWatch:
        """Return a new waiter for the same gang."""
        return self.waiter(gang.allocation_id)

    def port(self, gang: GangWatch) -> SlotRequest:
        """Return the port of a waiter."""
        return GangSlots(self.hook, gang.allocation_id, gang.watch, LOG)

    async def free(self, gang: GangWatch) -> None:
        """End the gang."""
        self.store.gangs.end(gang.allocation_id, "the test ends it")

    def withdraw(self) -> None:
        """End the newest gang."""
        self.store.gangs.end(self.newest, "a user released it")


@pytest.fixture
def queue(store: Any, submit: Callable[..., Ticket]) -> QueueSource:
    return QueueSource(store, submit)


@pytest.fixture
def source(request: pytest.FixtureRequest, store: Any, submit: Callable[..., Ticket]) -> Any:
    if request.param == "queue":
        return QueueSource(store, submit)
    return GangSource(store) if request.param == "gang" else TurnSource(store)


#: Sources of requests, of requests that wait in the queue, of those that use or acquire a held gang, and of attempts,
#: which also release slots.
of_all = pytest.mark.parametrize("source", ["queue", "gang", "turn"], indirect=True)
in_queue = pytest.mark.parametrize("source", ["queue", "gang"], indirect=True)
of_gangs = pytest.mark.parametrize("source", ["gang", "turn"], indirect=True)
of_attempts = pytest.mark.parametrize("source", ["queue", "turn"], indirect=True)


def held(answer: object) -> set[tuple[str, int]]:
    assert isinstance(answer, Granted), answer
    return {(host, index) for host, indices in answer.slots.items() for index in indices}


@of_all
@pytest.mark.parametrize(("slots", "hosts"), [(1, 1), (2, 1), (4, 2)])
async def test_a_request_that_fits_is_granted_its_slots_which_are_taken(source: Any, slots: int, hosts: int) -> None:
    answer = await source.port(source.new(slots)).request()
    assert len(held(answer)) == slots
    assert len(answer.slots) == hosts
    taken = {(slot.host, slot.index) for slot in source.store.hosts.slots() if slot.allocation_id is not None}
    assert held(answer) == taken


@of_attempts
@pytest.mark.parametrize("slots", [1, 4])
async def test_an_attempt_is_clear_until_its_request_is_granted(source: Any, slots: int) -> None:
    port = source.port(source.new(slots))
    assert await port.uncleared() == set()
    answer = await port.request()
    assert await port.uncleared() == set(answer.slots)


@of_all
async def test_a_granted_request_that_is_repeated_has_the_same_slots_for_every_follower(source: Any) -> None:
    follower = source.new(2)
    first = await source.port(follower).request()
    assert len(held(first)) == 2
    assert await source.port(follower).request() == first
    assert await source.port(source.again(follower)).request() == first


@of_all
async def test_no_slot_is_granted_twice_and_a_request_that_waits_has_a_reason(source: Any) -> None:
    answers = [await source.port(source.new(2)).request() for _ in range(3)]
    granted = [held(answer) for answer in answers[: source.at_once]]
    assert len(set.union(*granted)) == 2 * source.at_once
    for waiting in answers[source.at_once :]:
        assert isinstance(waiting, Waiting)
        assert waiting.reason
        assert not waiting.is_paused


@of_attempts
async def test_an_attempt_that_waits_is_clear(source: Any) -> None:
    await source.port(source.new(4)).request()
    port = source.port(source.new(4))
    assert isinstance(await port.request(), Waiting)
    assert await port.uncleared() == set()


@pytest.mark.each_change
@of_all
async def test_released_slots_are_granted_to_the_request_that_waits_and_wake_it(source: Any) -> None:
    first, waiting = source.new(4), source.port(source.new(4))
    granted = await source.port(first).request()
    assert isinstance(await waiting.request(), Waiting)
    change = asyncio.ensure_future(waiting.changed())
    await source.free(first)
    await asyncio.wait_for(change, SOON_S)
    assert held(await waiting.request()) == held(granted)


async def test_the_process_that_releases_slots_grants_them_without_a_waiter_that_notices(queue: QueueSource) -> None:
    first, waiting = queue.new(4), queue.new(4)
    port = queue.port(first)
    await port.request()
    assert isinstance(await queue.port(waiting).request(), Waiting)
    await port.release(["h1"], proof="clear")
    assert queue.store.attempts.get(waiting.attempt_id).allocation_state == "waiting"
    await port.release(["h2"], proof="clear")
    assert queue.store.attempts.get(waiting.attempt_id).allocation_state == "granted"


async def test_slots_are_released_although_their_next_pass_fails(
    queue: QueueSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def schedule(pool: str) -> None:
        raise StoreUnavailableError("the store is gone")

    first = queue.new(4)
    port = queue.port(first)
    await port.request()
    monkeypatch.setattr(queue.store.queue, "schedule", schedule)
    await port.release(["h1", "h2"], proof="clear")
    assert await port.uncleared() == set()


@of_attempts
async def test_the_slots_of_a_host_that_has_not_confirmed_stay_held(source: Any) -> None:
    first = source.new(4)
    port, waiting = source.port(first), source.port(source.new(4))
    await port.request()
    for _ in range(2):
        await port.release(["h1"], proof="clear")
        assert await port.uncleared() == {"h2"}
    assert isinstance(await waiting.request(), Waiting)
    await port.release(["h2"], proof="clear")
    assert await port.uncleared() == set()
    source.end(first)
    assert len(held(await waiting.request())) == 4


@in_queue
async def test_a_request_that_no_slots_can_ever_serve_is_refused_with_the_reason(source: Any) -> None:
    port = source.port(source.new(4))
    source.shrink()
    answers = [await port.request(), await port.request()]
    assert [type(answer) for answer in answers] == [Never, Never]
    assert "4 slots" in answers[0].reason


async def test_a_paused_request_holds_nothing_and_says_so(queue: QueueSource) -> None:
    rt = queue.new(1)
    view = await rt.view()
    queue.store.control.pause(view.trial_id, by="ann")
    answer = await queue.port(rt).request()
    assert isinstance(answer, Waiting)
    assert answer.is_paused
    assert await queue.port(rt).uncleared() == set()


@of_gangs
async def test_a_request_for_a_gang_that_has_ended_is_an_error_that_names_why(source: Any) -> None:
    port = source.port(source.new(2))
    source.withdraw()
    with pytest.raises(GangEndedError, match="a user released it"):
        await port.request()


@of_all
async def test_a_follower_that_was_replaced_requests_nothing(source: Any) -> None:
    old = source.new(2)
    new = source.again(old)
    with pytest.raises(StaleWatchError):
        await source.port(old).request()
    assert len(held(await source.port(new).request())) == 2


@of_attempts
async def test_a_follower_that_was_replaced_releases_nothing(source: Any) -> None:
    old = source.new(2)
    new = source.port(source.again(old))
    granted = await new.request()
    with pytest.raises(StaleWatchError):
        await source.port(old).release(list(granted.slots), proof="untaken")
    assert await new.uncleared() == set(granted.slots)


@of_attempts
async def test_a_kill_ends_the_wait_for_slots(source: Any) -> None:
    await source.port(source.new(4)).request()
    rt = source.new(4)
    port = source.port(rt)
    assert isinstance(await port.request(), Waiting)
    change = asyncio.ensure_future(port.changed())
    await asyncio.sleep(0)
    rt.kill()
    with pytest.raises(Killed):
        await asyncio.wait_for(change, SOON_S)


@of_attempts
async def test_the_engine_chooses_the_source_by_the_attempt(source: Any) -> None:
    rt = source.new(2)
    assert type(slots_of(rt, await rt.view())) is type(source.port(rt))
