"""Every source of slots keeps the same promises to the engine: the queue in the store, for attempts and held gangs."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Killed, Runtime
from airflow_provider_dtrain.engine.slots.external_slots import ExternalSlots
from airflow_provider_dtrain.engine.slots.gang_slots import GangSlots, GangTurn
from airflow_provider_dtrain.engine.slots.queue_slots import QueueSlots
from airflow_provider_dtrain.engine.slots.slot_port import Granted, Never, SlotPort, SlotRequest, Waiting
from airflow_provider_dtrain.engine.slots.source import slots_of
from airflow_provider_dtrain.errors import (
    DtrainError,
    GangEndedError,
    HostUnreachableError,
    SlotsTakenError,
    StaleWatchError,
    StoreUnavailableError,
)
from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.hosts.schedulers.registry import scheduler_kind
from airflow_provider_dtrain.store.database.connections import utcnow
from airflow_provider_dtrain.store.database.tables import allocations, attempts
from airflow_provider_dtrain.store.records.gangs import GangView
from airflow_provider_dtrain.store.records.trials import Ticket, TrialKey, TrialSubmission
from testbed.slurm.cluster import SlurmCluster
from testbed.standalone import wait_until
from testbed.stores import host
from tests.contract.gang_world import ask

pytest_plugins = ["testbed.slurm.plugin"]

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

    async def answer(self, port: SlotRequest) -> Granted | Waiting | Never:
        """Return the answer to a request once the source has considered it."""
        return await port.request()

    async def granted(self, port: SlotRequest) -> Granted | Waiting | Never:
        """Return the answer to a request whose slots have become free."""
        return await port.request()


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

    def want_back(self, rt: Runtime) -> None:
        """Preempt the attempt, as a scheduling pass does."""
        values = {"preempted_at": self.store.db.now(), "preempted_for": None}
        with self.store.db.engine.begin() as conn:
            of = sa.select(attempts.c.allocation_id).where(attempts.c.id == rt.attempt_id).scalar_subquery()
            conn.execute(allocations.update().where(allocations.c.id == of).values(**values))

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

    def want_back(self, rt: Runtime) -> None:
        """Let the store end the gang."""
        self.withdraw()

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


class SlurmSource(QueueSource):
    """Attempts whose slots are jobs of a real Slurm cluster."""

    def __init__(self, store: Any, submit: Callable[..., Ticket], cluster: SlurmCluster) -> None:
        self.store, self.cluster = store, cluster
        self.hook = DtrainHook(dataclasses.replace(settings(), orphan_timeout_s=30.0))
        self.hook.__dict__["store"] = store
        self.submit = functools.partial(submit, pool="hpc")
        kind = scheduler_kind("slurm")
        options = kind.checked({"slots": "cpu", "cpus_per_slot": 4, "python": sys.executable, "partition": "main"})
        store.pools.set_scheduler("hpc", backend="slurm", slot_type="cpu", scheduler=options)

    def port(self, rt: Runtime) -> SlotPort:
        """Return the port of a follower's attempt."""
        return ExternalSlots(rt)

    async def answer(self, port: SlotRequest) -> Granted | Waiting | Never:
        """Return the answer once Slurm has started the job, or says that it waits for others."""
        give_up_at = time.monotonic() + 60.0
        while time.monotonic() < give_up_at:
            found = await port.request()
            if (
                not isinstance(found, Waiting)
                or found.is_paused
                or "in use" in found.reason
                or "higher priority" in found.reason
            ):
                return found
            await port.changed()
        raise AssertionError(found)

    async def granted(self, port: SlotRequest) -> Granted | Waiting | Never:
        """Return the answer once Slurm has started the job."""
        async with asyncio.timeout(60.0):
            while isinstance(found := await port.request(), Waiting):
                await port.changed()
        return found

    async def free(self, rt: Runtime) -> None:
        """Release all slots of the attempt, and end it."""
        port = self.port(rt)
        await port.release(sorted(await port.uncleared()), proof="clear")
        self.end(rt)

    def number(self, rt: Runtime) -> str:
        """Return Slurm's number of the attempt's job."""
        job = self.store.external_jobs.of_allocation(self.store.attempts.get(rt.attempt_id).allocation_id)
        return str(job.number)

    def want_back(self, rt: Runtime) -> None:
        """Send the warning that Slurm sends before a preemption or the end of the time."""
        self.cluster.run("scancel", "--signal=URG", self.number(rt))

    def take(self, rt: Runtime, state: str) -> None:
        """Take the slots away."""
        self.cluster.run("scancel", self.number(rt))

    def shrink(self) -> None:
        """Let the pool use a partition with one node."""
        options = {**self.store.pools.get("hpc").scheduler, "partition": "small"}
        self.store.pools.set_scheduler("hpc", backend="slurm", slot_type="cpu", scheduler=options)


@pytest.fixture(scope="session")
def two_nodes(slurm_clusters: Callable[..., SlurmCluster]) -> SlurmCluster:
    """Two nodes of eight CPUs."""
    partitions = {"main": {"Default": "YES", "MaxTime": 60}, "small": {"MaxTime": 60, "Nodes": "n1"}}
    return slurm_clusters(nodes=2, partitions=partitions, conf={"KillWait": 2})


@pytest.fixture
def queue(store: Any, submit: Callable[..., Ticket]) -> QueueSource:
    return QueueSource(store, submit)


@pytest.fixture
def source(request: pytest.FixtureRequest, store: Any, submit: Callable[..., Ticket]) -> Any:
    if request.param == "queue":
        return QueueSource(store, submit)
    if request.param == "slurm":
        return slurm_source(request, store, submit)
    return GangSource(store) if request.param == "gang" else TurnSource(store)


def slurm_source(request: pytest.FixtureRequest, store: Any, submit: Callable[..., Ticket]) -> SlurmSource:
    """Return the source whose jobs a cluster runs, in the test's own home folder."""
    if store.db.engine.dialect.name != "sqlite":
        pytest.skip("a job takes seconds: with one database")
    cluster = request.getfixturevalue("two_nodes")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in cluster.environment.items():
        patch.setenv(name, value)
    patch.setenv("HOME", str(request.getfixturevalue("tmp_path")))
    patch.setattr(store.db, "clock", utcnow)
    source = SlurmSource(store, submit, cluster)

    def end() -> None:
        source.hook.links.close_all()
        subprocess.run(["scancel", "--user=root"], timeout=30, check=True)
        wait_until(lambda: cluster.run("squeue", "-h").stdout == "", timeout_s=60, what="the end of the jobs")

    request.addfinalizer(end)
    return source


#: A job takes seconds. What every change runs on it is below.
SLURM = pytest.param("slurm", marks=pytest.mark.nightly)
#: Sources of requests, of requests that wait in the queue, of those that use or acquire a held gang, and of attempts,
#: which also release slots.
of_all = pytest.mark.parametrize("source", ["queue", "gang", "turn", SLURM], indirect=True)
in_queue = pytest.mark.parametrize("source", ["queue", "gang", SLURM], indirect=True)
of_gangs = pytest.mark.parametrize("source", ["gang", "turn"], indirect=True)
of_attempts = pytest.mark.parametrize("source", ["queue", "turn", SLURM], indirect=True)


def held(answer: object) -> set[tuple[str, int]]:
    assert isinstance(answer, Granted), answer
    return {(host, index) for host, indices in answer.slots.items() for index in indices}


@of_all
@pytest.mark.parametrize(("slots", "hosts"), [(1, 1), (2, 1), (4, 2)])
async def test_a_request_that_fits_is_granted_its_slots_which_are_taken(source: Any, slots: int, hosts: int) -> None:
    answer = await source.answer(source.port(source.new(slots)))
    assert len(held(answer)) == slots
    assert len(answer.slots) == hosts
    taken = {(slot.host, slot.index) for slot in source.store.hosts.slots() if slot.allocation_id is not None}
    assert held(answer) == taken


@of_attempts
@pytest.mark.parametrize("slots", [1, 4])
async def test_an_attempt_is_clear_until_its_request_is_granted(source: Any, slots: int) -> None:
    port = source.port(source.new(slots))
    assert await port.uncleared() == set()
    answer = await source.answer(port)
    assert await port.uncleared() == set(answer.slots)


@of_all
async def test_a_granted_request_that_is_repeated_has_the_same_slots_for_every_follower(source: Any) -> None:
    follower = source.new(2)
    first = await source.answer(source.port(follower))
    assert len(held(first)) == 2
    assert await source.answer(source.port(follower)) == first
    assert await source.answer(source.port(source.again(follower))) == first


@of_all
async def test_no_slot_is_granted_twice_and_a_request_that_waits_has_a_reason(source: Any) -> None:
    answers = [await source.answer(source.port(source.new(2))) for _ in range(3)]
    granted = [held(answer) for answer in answers[: source.at_once]]
    assert len(set.union(*granted)) == 2 * source.at_once
    for waiting in answers[source.at_once :]:
        assert isinstance(waiting, Waiting)
        assert waiting.reason
        assert not waiting.is_paused


@of_attempts
async def test_an_attempt_that_waits_is_clear(source: Any) -> None:
    await source.answer(source.port(source.new(4)))
    port = source.port(source.new(4))
    assert isinstance(await source.answer(port), Waiting)
    assert await port.uncleared() == set()


@pytest.mark.each_change
@of_all
async def test_released_slots_are_granted_to_the_request_that_waits_and_wake_it(source: Any) -> None:
    first, waiting = source.new(4), source.port(source.new(4))
    granted = await source.answer(source.port(first))
    assert isinstance(await source.answer(waiting), Waiting)
    change = asyncio.ensure_future(waiting.changed())
    await source.free(first)
    await asyncio.wait_for(change, SOON_S)
    assert len(held(await source.granted(waiting))) == len(held(granted))


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
    one, other = sorted((await source.answer(port)).slots)
    for _ in range(2):
        await port.release([one], proof="clear")
        assert await port.uncleared() == {other}
    assert isinstance(await source.answer(waiting), Waiting)
    await port.release([other], proof="clear")
    assert await port.uncleared() == set()
    source.end(first)
    assert len(held(await source.granted(waiting))) == 4


@in_queue
async def test_a_request_that_no_slots_can_ever_serve_is_refused_with_the_reason(source: Any) -> None:
    port = source.port(source.new(4))
    source.shrink()
    answers = [await source.answer(port), await source.answer(port)]
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
        await source.answer(source.port(old))
    assert len(held(await source.answer(source.port(new)))) == 2


@of_attempts
async def test_a_follower_that_was_replaced_releases_nothing(source: Any) -> None:
    old = source.new(2)
    new = source.port(source.again(old))
    granted = await source.answer(new)
    with pytest.raises(StaleWatchError):
        await source.port(old).release(list(granted.slots), proof="untaken")
    assert await new.uncleared() == set(granted.slots)


@of_attempts
async def test_a_kill_ends_the_wait_for_slots(source: Any) -> None:
    await source.answer(source.port(source.new(4)))
    rt = source.new(4)
    port = source.port(rt)
    assert isinstance(await source.answer(port), Waiting)
    change = asyncio.ensure_future(port.changed())
    await asyncio.sleep(0)
    rt.kill()
    with pytest.raises(Killed):
        await asyncio.wait_for(change, SOON_S)


@of_attempts
async def test_the_engine_chooses_the_source_by_the_attempt(source: Any) -> None:
    rt = source.new(2)
    assert type(slots_of(rt, await rt.view())) is type(source.port(rt))


class Ends:
    """A followed gang that records why it was ended."""

    def __init__(self) -> None:
        self.errors: list[DtrainError] = []

    def end_because(self, error: DtrainError) -> None:
        self.errors.append(error)


@of_attempts
async def test_slots_that_the_source_wants_back_are_a_control_request(source: Any) -> None:
    rt = source.new(2)
    port = source.port(rt)
    await source.answer(port)
    # A store writes the plan of a launch before ranks run.
    async with port.watching(Ends()):
        await asyncio.sleep(3.0 if isinstance(source, SlurmSource) else 0.0)
        source.want_back(rt)
        for _ in range(150):
            found = source.store.control.pending(rt.attempt_id)
            if found.preempted_for or found.asked_back or found.gang_ended:
                return
            await asyncio.sleep(0.1)
    raise AssertionError(found)


@of_attempts
async def test_a_host_that_the_source_says_nothing_about_may_still_run_ranks(source: Any) -> None:
    rt = source.new(2)
    port = source.port(rt)
    granted = await source.answer(port)
    error = HostUnreachableError(next(iter(granted.slots)), "no answer")
    assert await port.clear_hosts() == set()
    assert await port.explained(error) is error
    assert await port.explained(None) is None


@pytest.mark.nightly
@pytest.mark.parametrize("source", ["slurm"], indirect=True)
async def test_slots_that_the_source_took_end_the_gang_and_are_the_cause(source: Any) -> None:
    rt = source.new(2)
    port = source.port(rt)
    granted = await source.answer(port)
    gang = Ends()
    async with port.watching(gang):
        source.take(rt, "CANCELLED")
        for _ in range(300):
            if gang.errors:
                break
            await asyncio.sleep(0.1)
    assert isinstance(gang.errors[0], SlotsTakenError)
    assert await port.clear_hosts() == set(granted.slots)
    found = await port.explained(HostUnreachableError(next(iter(granted.slots)), "no answer"))
    assert "was cancelled" in str(found)
    with pytest.raises(Killed):
        await rt.check(at_once=True)
    assert not port.keeps_files


@pytest.mark.parametrize("source", ["queue"], indirect=True)
async def test_a_request_is_renewed_in_the_store_only_when_that_is_due(source: Any) -> None:
    def asked_s_ago() -> float:
        return (source.store.db.now() - source.store.attempts.get(waiting.attempt_id).asked_at).total_seconds()

    def set_asked(seconds_ago: float) -> None:
        of = sa.select(attempts.c.allocation_id).where(attempts.c.id == waiting.attempt_id).scalar_subquery()
        at = source.store.db.now() - timedelta(seconds=seconds_ago)
        with source.store.db.engine.begin() as conn:
            conn.execute(allocations.update().where(allocations.c.id == of).values(renewed_at=at))

    assert isinstance(await source.port(source.new(4)).request(), Granted)
    waiting = source.new(2)
    port = source.port(waiting)
    for seconds_ago, is_renewed in ((5.0, False), (15.0, True), (-5.0, True)):
        set_asked(seconds_ago)
        assert isinstance(await port.request(), Waiting)
        assert (abs(asked_s_ago()) < 3) is is_renewed
    # Also a follower that renews nothing learns at once that another one has taken over.
    set_asked(0.0)
    source.again(waiting)
    with pytest.raises(StaleWatchError):
        await port.request()
