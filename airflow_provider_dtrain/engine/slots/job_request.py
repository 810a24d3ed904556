"""Request for slots as a job of an external scheduler: submitted once, polled together with all others of its pool.

Each step is stored before it is done, so that a process that takes over continues at the same place. The name of a job
is unique: a process that finds that it may have been submitted searches for the name before it submits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.external_jobs import EndKind, ExternalJob, JobAsk, JobEnd, JobPhase
from airflow_provider_dtrain.core.lifecycle.timing import COMMAND_TIMEOUT_S
from airflow_provider_dtrain.engine.session.threads import in_connect_thread
from airflow_provider_dtrain.engine.slots.scheduler_facts import refresh_stale
from airflow_provider_dtrain.engine.slots.slot_port import Never, Waiting
from airflow_provider_dtrain.errors import HostError, HostRefusedError, SchedulerAwayError, SubmissionRefusedError
from airflow_provider_dtrain.hooks.schedulers import ascheduler
from airflow_provider_dtrain.hooks.sealing import sealed_bytes

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.scheduling.model import SlotType
    from airflow_provider_dtrain.engine.logs.task_log import TaskLog
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hosts.schedulers.base import ExternalScheduler
    from airflow_provider_dtrain.store.records.trials import HostRecord, Pool

#: Ends after which another job is submitted for the same request.
AGAIN = (
    EndKind.TIMEOUT,
    EndKind.PREEMPTED,
    EndKind.NODE_FAILED,
    EndKind.INTERRUPTED,
    EndKind.LOST,
    EndKind.COMPLETED,
)
#: First and longest pause before the next job of a request, in seconds.
AGAIN_FIRST_S, AGAIN_MOST_S = 2.0, 300.0
#: First and longest pause between two steps of a request, in seconds, and its share of the time without a change. A
#: process may follow a thousand requests.
STEP_S, STEP_MOST_S, STEP_RATIO = 0.7, 10.0, 0.1
#: Seconds after its start after which a job whose nodes have not all answered is replaced. Setup lines may take
#: minutes, and a step that Slurm never starts would last until the end of the job's time.
ANSWER_S = 900.0
#: First and longest pause between two looks for a job that may have been submitted, in seconds.
LOOK_FIRST_S, LOOK_MOST_S = 1.0, 15.0
#: Seconds between the first answer that does not have a job and the next submission: a controller that was stopped
#: answers before it has read all requests that wait for it.
MISSED_FOR_S = 5.0


@dataclass(frozen=True)
class Ready:
    """A job that runs and whose nodes answer."""

    job: ExternalJob
    records: Sequence[HostRecord]


@dataclass(frozen=True)
class Cancelled:
    """A user ended the job with the scheduler's own command."""

    #: In a sentence.
    message: str


class JobRequest:
    """The job of one request for slots.

    :param ask: the job, without its name, secret and excluded nodes
    :param db: calls a method of the store in a thread
    """

    def __init__(
        self,
        hook: DtrainHook,
        pool: str,
        allocation_id: int,
        ask: JobAsk,
        log: TaskLog,
        db: Callable[..., Awaitable[Any]],
    ) -> None:
        self.hook = hook
        self.store = hook.store
        self.pool_name = pool
        self.allocation_id = allocation_id
        self.ask = ask
        self.log = log
        self.db = db
        #: Jobs that the follower has said something about.
        self._shown: set[tuple[int, JobPhase]] = set()
        #: Reading of the monotonic clock of the next look for a job that may have been submitted, and its pause.
        self._look_at, self._look_pause_s = 0.0, 0.0
        self._missed_at: float | None = None
        self._slot_type: SlotType = "cpu"
        #: Last reason, and the reading of the monotonic clock at which it became that.
        self._reason, self._reason_at = "", time.monotonic()

    def pause_s(self) -> float:
        """Return the seconds until the next step is due. They grow while nothing changes."""
        return min(STEP_MOST_S, max(STEP_S, STEP_RATIO * (time.monotonic() - self._reason_at)))

    async def advance(self) -> Ready | Waiting | Never | Cancelled:
        """Take the job a step further, as far as it goes now."""
        pool: Pool = await self.db(self.store.pools.get, self.pool_name)
        self._slot_type = pool.slot_type
        scheduler = await ascheduler(pool)
        try:
            return await self._advance(pool, scheduler)
        except SubmissionRefusedError as error:
            return Never(reason=str(error))
        except SchedulerAwayError as error:
            return await self._waiting(str(error))

    async def _advance(self, pool: Pool, scheduler: ExternalScheduler) -> Ready | Waiting | Never | Cancelled:
        if (found := await self._former(scheduler) or await self._pause_left()) is not None:
            return found
        job = await self._begun(scheduler)
        if isinstance(job, str):
            return await self._waiting(job)
        is_new = job.phase == JobPhase.SUBMITTING
        if is_new and (reason := await self._submit(pool, scheduler, job)) is not None:
            return await self._waiting(reason)
        await poll(self.hook, self.pool_name, scheduler, self.db)
        job = await self.db(self.store.external_jobs.get, job.job_id)
        self._show(job)
        if job.phase == JobPhase.RUNNING:
            return await self._connect(scheduler, job)
        if job.phase == JobPhase.ENDED and job.end is not None:
            return await self._after(job.end)
        if job.is_hopeless:
            return Never(reason=f"Job {job.number} can never start: {job.reason}")
        return await self._waiting(job.reason or f"job {job.number or job.name} is {job.phase}: {job.phase.meaning}")

    async def _begun(self, scheduler: ExternalScheduler) -> ExternalJob | str:
        """Return the live job of the request, a new one if there is none, or why there can be none now."""
        job: ExternalJob | None = await self.db(self.store.external_jobs.of_allocation, self.allocation_id)
        if job is not None and not job.is_over:
            return job
        if (reason := scheduler.busy()) is not None:
            return reason
        access = await in_connect_thread(lambda: sealed_bytes(scheduler.new_access()))
        begin = self.store.external_jobs.begin
        found: ExternalJob | str = await self.db(begin, self.allocation_id, access, most=scheduler.max_jobs)
        return found

    async def _submit(self, pool: Pool, scheduler: ExternalScheduler, job: ExternalJob) -> str | None:
        """Submit the job unless the scheduler has it already, and return why that cannot be done now."""
        jobs = self.store.external_jobs
        if job.submitted_at is not None:
            if time.monotonic() < self._look_at:
                return _UNCLEAR
            if (number := await self._known(scheduler, job)) is not None:
                await self.db(jobs.submitted, job.job_id, number)
                return None
            self._missed_at = self._missed_at or time.monotonic()
            may_settle = (datetime.now(UTC) - job.submitted_at).total_seconds() < scheduler.settles_in_s
            if may_settle or time.monotonic() - self._missed_at < MISSED_FOR_S:
                self._look_pause_s = min(LOOK_MOST_S, max(LOOK_FIRST_S, 2.0 * self._look_pause_s))
                self._look_at = time.monotonic() + self._look_pause_s
                return _UNCLEAR
        if (reason := scheduler.busy()) is not None:
            return reason
        await in_connect_thread(refresh_stale, self.store, pool, scheduler)
        excluded = await self.db(jobs.excluded_nodes, self.allocation_id)
        ask = replace(self.ask, name=job.name, excluded=excluded, access=await in_connect_thread(_opened, job.access))
        await self.db(jobs.submitting, job.job_id)
        self._missed_at = None
        try:
            number = await self._accepted(scheduler, ask)
        except SubmissionRefusedError as error:
            await self.db(jobs.ended, job.job_id, JobEnd(kind=EndKind.FAILED, message=str(error)))
            raise
        except SchedulerAwayError as error:
            if not error.is_ambiguous:
                await self.db(jobs.not_submitted, job.job_id)
            raise
        await self.db(jobs.submitted, job.job_id, number)
        self.log.info("Submitted job %s of pool '%s' as '%s'", number, self.pool_name, job.name)
        return None

    async def _accepted(self, scheduler: ExternalScheduler, ask: JobAsk) -> str:
        """Submit a job and return its number. Nodes that the trial avoids are used if no others can serve it."""
        try:
            return await in_connect_thread(scheduler.submit, ask)
        except SubmissionRefusedError:
            if not ask.excluded:
                raise
            self.log.warning("No other nodes can serve the trial: %s are used again", ", ".join(ask.excluded))
            return await in_connect_thread(scheduler.submit, replace(ask, excluded=()))

    async def _known(self, scheduler: ExternalScheduler, job: ExternalJob) -> str | None:
        """Return the number under which the scheduler has a job already, and cancel duplicates."""
        found = (await in_connect_thread(scheduler.find, [job.name])).get(job.name, ())
        if len(found) > 1:
            await in_connect_thread(scheduler.cancel, [one.number for one in found[1:]])
        return found[0].number if found else None

    async def _connect(self, scheduler: ExternalScheduler, job: ExternalJob) -> Ready | Waiting | Never:
        """Return the nodes of a running job as hosts, once all of them answer."""
        try:
            return Ready(job, await self._records(scheduler, job))
        except HostRefusedError as error:
            return Never(reason=str(error))
        except HostError as error:
            self.log.debug("Job %s does not answer yet: %s", job.number, error)
            await self._replace_silent(scheduler, job)
            return await self._waiting(f"job {job.number} has its nodes, and is starting there")

    async def _replace_silent(self, scheduler: ExternalScheduler, job: ExternalJob) -> None:
        """Cancel a job whose nodes should have answered long ago. The next step submits another one."""
        if job.started_at is None or job.is_cancelled or job.number is None:
            return
        silent_s = (datetime.now(UTC) - job.started_at).total_seconds()
        if silent_s > ANSWER_S:
            self.log.warning("Job %s has not answered for %.0f s, and is replaced", job.number, silent_s)
            await self.db(self.store.external_jobs.cancelling, [job.job_id])
            await in_connect_thread(scheduler.cancel, [job.number])

    async def _records(self, scheduler: ExternalScheduler, job: ExternalJob) -> list[HostRecord]:
        nodes = range(len(job.nodes))
        return list(await asyncio.gather(*(in_connect_thread(self._record, scheduler, job, node) for node in nodes)))

    def _record(self, scheduler: ExternalScheduler, job: ExternalJob, node: int) -> HostRecord:
        """Return a node of the job as a host with the job's slots. Blocks."""
        from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord

        state_dir = f"{state_dirs(self.store.store_id, job)}{node}"
        record = HostRecord(
            name=_host_name(job, node),
            pool=self.pool_name,
            slot_type=self._slot_type,
            slots=(),
            python=scheduler.python,
            remote_dir=self.hook.settings.remote_dir,
            state_dir=state_dir,
            lock_dir="none",
            external_job_id=job.job_id,
            node=node,
        )
        address = self.hook.node_address(record, job, scheduler)
        link = self.hook.link(record, address)
        facts = link.call("probe", timeout_s=COMMAND_TIMEOUT_S).result(COMMAND_TIMEOUT_S)
        with contextlib.closing(address.make_transport()) as transport:
            devices = scheduler.devices(self.ask.slots // len(job.nodes), facts, transport)
        slots = tuple(
            SlotRecord(index=index, device_name="CPU")
            if gpu is None
            else SlotRecord(index=index, device=gpu["uuid"], device_name=gpu["name"], memory_bytes=gpu["memory_bytes"])
            for index, gpu in enumerate(devices)
        )
        return replace(record, slots=slots, facts=dict(facts), boot_id=link.hello.boot_id)

    async def _after(self, end: JobEnd) -> Waiting | Never | Cancelled:
        if end.kind == EndKind.CANCELLED:
            return Cancelled(end.message)
        if end.kind in AGAIN:
            return await self._waiting(f"{end.message} Another job is submitted.")
        return Never(reason=end.message)

    async def _former(self, scheduler: ExternalScheduler) -> Waiting | Cancelled | None:
        """Return that the trial's last job has not ended, or was ended by a user. Its ranks may have left before."""
        former: ExternalJob | None = await self.db(self.store.external_jobs.former, self.allocation_id)
        if former is None:
            return None
        if not former.is_over:
            await poll(self.hook, self.pool_name, scheduler, self.db)
            former = await self.db(self.store.external_jobs.get, former.job_id)
        assert former is not None
        if former.end is None:
            return await self._waiting(f"job {former.number}, the trial's last one, is ending")
        return Cancelled(former.end.message) if former.end.kind == EndKind.CANCELLED else None

    async def _pause_left(self) -> Waiting | Cancelled | None:
        """Return that the request waits before its next job, because several have ended without a use.

        After the end by a user there is none, although the kill of the trial may take a moment.
        """
        job = await self.db(self.store.external_jobs.of_allocation, self.allocation_id)
        if job is None or not job.is_over or job.end is None or job.ended_at is None:
            return None
        if job.end.kind == EndKind.CANCELLED:
            return Cancelled(job.end.message)
        tries = int(job.name.rpartition(".")[2])
        pause_s = min(AGAIN_MOST_S, AGAIN_FIRST_S * 2.0 ** min(tries - 1, 10))
        left_s = pause_s - (datetime.now(UTC) - job.ended_at).total_seconds()
        if left_s <= 0 or job.end.kind not in AGAIN:
            return None
        return await self._waiting(f"{job.end.message} Another job is submitted {pause_s:.0f} s later.")

    async def _waiting(self, reason: str) -> Waiting:
        if reason != self._reason:
            self._reason, self._reason_at = reason, time.monotonic()
            await self.db(self.store.external_jobs.note_reason, self.allocation_id, reason)
        return Waiting(reason=reason)

    def _show(self, job: ExternalJob) -> None:
        if (job.job_id, job.phase) not in self._shown:
            self._shown.add((job.job_id, job.phase))
            if job.phase == JobPhase.RUNNING:
                self.log.info("Job %s runs on %s", job.number, ", ".join(job.nodes))


_UNCLEAR = "it is not clear yet whether its scheduler has accepted its job"


def pause_s(request: JobRequest | None) -> float:
    """Return the seconds until the next step of a request is due, None: it has taken none."""
    return STEP_S if request is None else request.pause_s()


def state_dirs(store_id: str, job: ExternalJob) -> str:
    """Return the path of the folders for a job's runs up to the number of the node.

    Two jobs on one node share neither runs nor locks: each may have slot 0 there.
    """
    return f"/var/tmp/dtrain-{store_id[:8]}-{job.job_id}."  # noqa: S108 - private, its owner is checked


def _host_name(job: ExternalJob, node: int) -> str:
    """Return the name of a node as a host: with the scheduler's number of the job, and that of the store.

    Two clusters may have the same numbers, and a controller that lost its state gives them out again.
    """
    return f"{job.nodes[node][:40].rstrip('.')}.{job.number}.{job.job_id}"


def _opened(sealed: bytes) -> bytes:
    from airflow_provider_dtrain.hooks.sealing import opened_bytes

    return opened_bytes(sealed)


async def poll(hook: DtrainHook, pool: str, scheduler: ExternalScheduler, db: Callable[..., Awaitable[Any]]) -> None:
    """Store the states of a pool's jobs, if that is due and no other process does it.

    :raises SchedulerAwayError: the scheduler does not answer
    """
    jobs = hook.store.external_jobs
    if not await db(jobs.take_poll, pool):
        return
    found, is_limited = None, False
    try:
        live = await db(jobs.live, pool)
        found = await in_connect_thread(scheduler.poll, [job for job in live if job.number is not None])
    except SchedulerAwayError as error:
        is_limited = error.is_rate_limited
        raise
    finally:
        await db(jobs.polled, pool, found, is_limited=is_limited)
