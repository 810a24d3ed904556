"""End of an attempt whose slots are a job: its job ends, after the log of its rank 0 was read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_dtrain.core.external_jobs import ExternalJob, JobAsk, JobPhase, JobStatus
from airflow_provider_dtrain.core.redaction import Redactor
from airflow_provider_dtrain.core.slurm.cluster import SlurmJob
from airflow_provider_dtrain.core.slurm.job_states import JobState
from airflow_provider_dtrain.core.slurm.options import slurm_options
from airflow_provider_dtrain.engine.attempt.trial_end import finish
from airflow_provider_dtrain.engine.logs.task_log import TaskLog
from airflow_provider_dtrain.engine.session.runtime import Runtime
from airflow_provider_dtrain.engine.slots import external_slots
from airflow_provider_dtrain.engine.slots.external_slots import ExternalSlots
from airflow_provider_dtrain.hooks.schedulers import CHANNELS
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.hosts.slurm.scheduler import SlurmScheduler
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord, Ticket
from airflow_provider_dtrain.store.store import Store
from tests.support.store_world import Clock


class Scheduler:
    """A scheduler that records what it cancels."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def cancel(self, numbers: Sequence[str]) -> None:
        self.cancelled += numbers

    def poll(self, jobs: Sequence[ExternalJob]) -> dict[int, JobStatus]:
        return {}


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    made = Scheduler()

    async def of_pool(_: object) -> Scheduler:
        return made

    async def at_once(_: object, __: object) -> None:
        return None

    monkeypatch.setattr(external_slots, "ascheduler", of_pool)
    monkeypatch.setattr(ExternalSlots, "_until_over", at_once)
    return made


@pytest.fixture
def ticket(store: Store, submit: Callable[..., Ticket]) -> Ticket:
    store.pools.set_scheduler("hpc", backend="slurm", slot_type="cpu", scheduler={"slots": "cpu"})
    return submit(slots=2, pool="hpc")


@pytest.fixture
def job(store: Store, ticket: Ticket) -> ExternalJob:
    """A job that its scheduler has as number 4711."""
    begun = store.external_jobs.begin(store.attempts.get(ticket.attempt_id).allocation_id, b"sealed", most=None)
    assert isinstance(begun, ExternalJob)
    store.external_jobs.submitting(begun.job_id)
    store.external_jobs.submitted(begun.job_id, "4711")
    return store.external_jobs.get(begun.job_id)


def follower(store: Store, ticket: Ticket) -> Runtime:
    hook: Any = SimpleNamespace(settings=settings(), store=store, links=SimpleNamespace(drop=lambda _: None))
    watch = store.attempts.watch(ticket.attempt_id, watcher="test")
    return Runtime(hook, store, ticket.attempt_id, watch, TaskLog(logging.getLogger("log"), 10**6), watcher="test")


async def test_a_trial_that_ends_before_its_job_starts_cancels_it(
    store: Store, ticket: Ticket, job: ExternalJob, scheduler: Scheduler
) -> None:
    rt = follower(store, ticket)
    outcome = await finish(rt, await rt.view(), "killed", None)
    assert outcome.state == "killed"
    assert scheduler.cancelled == ["4711"]
    assert store.external_jobs.get(job.job_id).is_cancelled


class Nodes:
    """Channel to the nodes of a job, which appends the end of the job to a list."""

    on_warning = None

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def transport(self, host: str, node: int) -> Any:
        return SimpleNamespace(run=lambda *_, **__: None, close=lambda: None)

    def end(self) -> bool:
        self.events.append("end of the job")
        return True

    def close(self) -> None:
        return None


@pytest.fixture
def events(store: Store, job: ExternalJob) -> Iterator[list[str]]:
    """Lines of the task log, and the end of the job, in order."""
    found: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.extend(record.getMessage().splitlines())

    handler = Lines()
    logger = logging.getLogger("log")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    CHANNELS.get(store.store_id, job.job_id, lambda: Nodes(found))
    yield found
    logger.removeHandler(handler)
    CHANNELS.drop(store.store_id, job.job_id)


@pytest.mark.parametrize("received", ["some", "some, and the gang has ended", "nothing"])
async def test_the_log_is_read_to_its_end_before_the_job_is_given_back(
    store: Store, ticket: Ticket, job: ExternalJob, scheduler: Scheduler, clock: Clock, events: list[str],
    received: str,
) -> None:  # fmt: skip
    rt = follower(store, ticket)
    times = {"started_at": clock.now, "ends_at": clock.now + timedelta(hours=1)}
    status = JobStatus(number="4711", name=job.name, phase=JobPhase.RUNNING, nodes=("n1",), **times)
    store.external_jobs.polled("hpc", {job.job_id: status})
    slots = tuple(SlotRecord(index=index) for index in range(2))
    node = HostRecord(name="n1.1", pool="hpc", slot_type="cpu", slots=slots, external_job_id=job.job_id, node=0)
    store.external_jobs.grant(rt.attempt_id, rt.watch, job.job_id, [node])
    assert store.queue.take_up(rt.attempt_id, rt.watch)
    store.attempts.set_plan(rt.attempt_id, rt.watch, {"plans": {"n1.1": {"ranks": [{"rank": 0}]}}})
    view = await rt.view()
    if received != "nothing":
        rt.logs.follow(view, "n1.1", 0).take(0, b"first\n", Redactor())

    async def call(host: str, command: str, **asked: Any) -> dict[str, Any]:
        assert "end of the job" not in events
        log = b"first\nlast\n"
        return {"size": len(log), "offset": asked["offset"], "data": log[asked["offset"] :][: asked["length"]]}

    rt.call = call  # type: ignore[method-assign]
    if received == "some, and the gang has ended":
        rt.logs.end(view)
    await ExternalSlots(rt).release(["n1.1"], proof="clear")
    await rt.logs.finish(view)
    found = [event for event in events if "---" not in event]
    assert found == ["[rank 0] first", "[rank 0] last", "end of the job"]


class Controller:
    """Requests to a controller, by command of the client. It runs one job on eight nodes."""

    def __init__(self, job: ExternalJob) -> None:
        self.asked: Counter[str] = Counter()
        now_s = job.submitted_at.timestamp() if job.submitted_at is not None else 0.0
        self.job = SlurmJob(
            job_id=4711, name=job.name, state=JobState.RUNNING, reason="", nodes=tuple(f"n{one}" for one in range(8)),
            submitted_s=now_s, started_s=now_s, ends_s=now_s + 86400.0,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Callable[..., list[SlurmJob]]:
        def call(*_: object, **__: object) -> list[SlurmJob]:
            self.asked[name] += 1
            return [self.job]

        return call


@pytest.mark.nightly
async def test_a_job_that_runs_costs_no_request_besides_the_poll_of_its_pool(
    store: Store, ticket: Ticket, job: ExternalJob, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = Controller(job)
    slurm = SlurmScheduler(slurm_options({"slots": "cpu"}), LocalTransport("login"))
    slurm.client = controller  # type: ignore[assignment]

    async def of_pool(_: object) -> SlurmScheduler:
        return slurm

    monkeypatch.setattr(external_slots, "ascheduler", of_pool)
    followers = [ExternalSlots(follower(store, ticket)) for _ in range(3)]
    for _ in range(360):
        clock.advance(10)
        for slots in followers:
            found = await slots._refreshed()
            assert found is not None
            assert found.end is None
            slots._ask = JobAsk(name="", slots=2)
            await slots._check_time(found)
    assert store.external_jobs.get(job.job_id).phase == JobPhase.RUNNING
    assert controller.asked.total() - controller.asked["poll"] == 0, "the budget is 10 per hour"
    assert 100 <= controller.asked["poll"] <= 130, "every 30 s, for all followers and nodes together"
