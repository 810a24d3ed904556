"""Slots from an external scheduler: a job per gang."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.external_jobs import EndKind, ExternalJob, JobAsk, scheduler_name, warning_lead_s
from airflow_provider_dtrain.core.lifecycle.states import AllocationState
from airflow_provider_dtrain.core.lifecycle.timing import REQUEST_FRESH_S
from airflow_provider_dtrain.engine.session.background import alongside, in_background
from airflow_provider_dtrain.engine.session.threads import in_connect_thread, in_thread
from airflow_provider_dtrain.engine.slots.gang_slots import GangSlots, GangTurn
from airflow_provider_dtrain.engine.slots.job_request import Cancelled, JobRequest, Ready, pause_s, poll, state_dirs
from airflow_provider_dtrain.engine.slots.slot_port import Granted, Never, Waiting
from airflow_provider_dtrain.errors import (
    DtrainError,
    GangEndedError,
    HostError,
    HostLostError,
    JobFailedError,
    SlotsTakenError,
)
from airflow_provider_dtrain.hooks.schedulers import CHANNELS, ascheduler
from airflow_provider_dtrain.hosts.schedulers.base import JobPolicy

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.engine.slots.slot_port import FollowedGang
    from airflow_provider_dtrain.hosts.schedulers.base import JobChannel
    from airflow_provider_dtrain.store.records.gangs import GangView
    from airflow_provider_dtrain.store.records.trials import AttemptView, Proof

#: Seconds between two looks at the stored state of a job whose ranks run.
WATCH_S = 2.0
#: Seconds by which the ranks are asked to stop before the scheduler warns them, because its warning may be lost.
EARLIER_S = 60.0
#: Polls after the end of a gang until the end of its job is stored, and seconds between them.
OVER_POLLS, OVER_EVERY_S = 12, 5.0
#: Seconds for the removal of a job's folder on a node.
REMOVE_S = 60.0


class _OfJob:
    """The part of a port that watches the job whose slots an attempt uses.

    :param rt: follower of the attempt
    """

    #: A node is out of reach once its job has ended.
    keeps_files = False
    _ask: JobAsk | None = None

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt

    # -- while the ranks run -------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def watching(self, gang: FollowedGang) -> AsyncIterator[None]:
        """Ask the ranks to stop when the scheduler wants the slots back, and end the gang when it took them."""
        async with alongside(self._watch(gang)):
            yield

    async def _watch(self, gang: FollowedGang) -> None:
        kept: JobChannel | None = None
        while True:
            with contextlib.suppress(DtrainError):
                job = await self._refreshed()
                if job is None:
                    return
                if job.end is not None:
                    await self._ended(gang, job)
                elif job.asked_back is None:
                    kept = await self._keep(job, kept)
                    await self._check_time(job)
            await asyncio.sleep(WATCH_S)

    async def _ended(self, gang: FollowedGang, job: ExternalJob) -> None:
        assert job.end is not None
        if job.end.kind == EndKind.CANCELLED:
            await self._kill(await self.rt.view(), job.end.message)
        gang.end_because(_error_of(job))

    async def _keep(self, job: ExternalJob, kept: JobChannel | None) -> JobChannel | None:
        """Send the policy of the job over a new channel, and hear its warnings."""
        channel = CHANNELS.current(self.rt.store.store_id, job.job_id)
        if channel is None or channel is kept:
            return kept
        loop = asyncio.get_running_loop()

        def warned(node: int, cause: str) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: in_background(self._ask_back(job, cause)))

        channel.on_warning = warned
        link = await self.rt.link(next(iter(job.hosts)))
        policy = JobPolicy(
            orphan_timeout_s=self.rt.settings.orphan_timeout_s,
            warn_at_s=await self._stop_at_s(job),
            on_warning=tuple(link.argv("request-stops", state_dirs(self.rt.store.store_id, job))),
        )
        await in_connect_thread(channel.keep, policy)
        return channel

    async def _stop_at_s(self, job: ExternalJob) -> float | None:
        """Return the Unix time at which the ranks are asked to stop: shortly before the scheduler warns them."""
        if job.ends_at is None or job.started_at is None:
            return None
        if self._ask is None:
            self._ask = await job_ask(self.rt, await self.rt.view())
        limit_s = (job.ends_at - job.started_at).total_seconds()
        lead_s = warning_lead_s(limit_s=limit_s, stop_s=self._ask.stop_s, checkpoint_s=self._ask.checkpoint_s)
        return job.ends_at.timestamp() - lead_s - min(EARLIER_S, limit_s / 8.0)

    async def _check_time(self, job: ExternalJob) -> None:
        stop_at_s = await self._stop_at_s(job)
        if stop_at_s is not None and time.time() >= stop_at_s:
            left_s = max(0.0, job.ends_at.timestamp() - time.time()) if job.ends_at is not None else 0.0
            await self._ask_back(job, f"the time of job {job.number} ends in {left_s:.0f} s")

    async def _ask_back(self, job: ExternalJob, cause: str) -> None:
        with contextlib.suppress(DtrainError):
            await in_thread(self.rt.store.external_jobs.ask_back, job.job_id, cause)

    async def _refreshed(self) -> ExternalJob | None:
        """Return the job as its scheduler reported it last, after a poll if one is due."""
        view = await self.rt.view()
        job = await self._job(view)
        if job is None or job.is_over:
            return job
        pool = await self.rt.db(self.rt.store.pools.get, view.pool)
        await poll(self.rt.hook, view.pool, await ascheduler(pool), self.rt.db)
        return await self._job(view)

    async def _job(self, view: AttemptView) -> ExternalJob | None:
        found: ExternalJob | None = await self.rt.db(self.rt.store.external_jobs.of_allocation, view.allocation_id)
        return found

    # -- the end -------------------------------------------------------------------------------
    async def explained(self, error: DtrainError | None) -> DtrainError | None:
        """Return the error of a gang whose job has ended: the job's end is its cause."""
        if not isinstance(error, HostError) or isinstance(error, SlotsTakenError):
            return error
        with contextlib.suppress(DtrainError):
            job = await self._refreshed()
            if job is not None and job.end is not None:
                return _error_of(job)
        return error

    async def clear_hosts(self) -> frozenset[str]:
        """Return the hosts of the attempt on which nothing can run, because their job has ended."""
        job = await self._job(await self.rt.view())
        if job is None or job.ended_at is None:
            return frozenset()
        silent_s = (datetime.now(UTC) - job.ended_at).total_seconds()
        # Supervisors on a node that failed have ended their ranks by then, because no follower renewed their leases.
        is_late = self.rt.settings.orphan_timeout_s > 0 and silent_s > self.rt.lost_after_s
        return frozenset(job.hosts) if is_late else job.clear_hosts

    async def _end(self, job: ExternalJob) -> None:
        """End a job whose slots are released. Recovery cancels it if it does not end by itself."""
        if job.is_over:
            return
        await self.rt.logs.receive(await self.rt.view())
        channel = CHANNELS.current(self.rt.store.store_id, job.job_id)
        if channel is None or not await in_connect_thread(self._leave_nodes, job, channel):
            await self._cancel(job)
        CHANNELS.drop(self.rt.store.store_id, job.job_id)
        in_background(self._until_over(job))

    async def _until_over(self, job: ExternalJob) -> None:
        """Poll until the store knows the end of the job, for a short while: nothing else may poll the pool now."""
        with contextlib.suppress(DtrainError):
            for _ in range(OVER_POLLS):
                await asyncio.sleep(OVER_EVERY_S)
                pool = await in_thread(self.rt.store.pools.get, job.pool)
                await poll(self.rt.hook, job.pool, await ascheduler(pool), in_thread)
                if (await in_thread(self.rt.store.external_jobs.get, job.job_id)).is_over:
                    await in_thread(self.rt.store.external_jobs.remove_hosts)
                    return

    def _leave_nodes(self, job: ExternalJob, channel: JobChannel) -> bool:
        """Remove the job's folders from its nodes, end it, and return whether it confirmed that. Blocks."""
        folders = state_dirs(self.rt.store.store_id, job)
        for node, host in enumerate(job.hosts):
            self.rt.hook.links.drop(host)
            with contextlib.suppress(HostError), contextlib.closing(channel.transport(host, node)) as transport:
                transport.run(["rm", "-rf", "--", f"{folders}{node}"], timeout_s=REMOVE_S)
        return channel.end()

    async def _cancel(self, job: ExternalJob | None) -> None:
        if job is None or job.is_over or job.number is None:
            return
        with contextlib.suppress(DtrainError):
            pool = await self.rt.db(self.rt.store.pools.get, job.pool)
            await self.rt.db(self.rt.store.external_jobs.cancelling, [job.job_id])
            await in_connect_thread((await ascheduler(pool)).cancel, [job.number])

    async def _kill(self, view: AttemptView, message: str) -> None:
        await self.rt.db(self.rt.store.control.kill, view.trial_id, scheduler_name(view.pool, message))


class ExternalSlots(_OfJob):
    """Slots of an attempt as a job of the external scheduler of its pool.

    :param rt: follower of the attempt
    """

    def __init__(self, rt: Runtime) -> None:
        super().__init__(rt)
        self._request: JobRequest | None = None
        self._renewed_at = float("-inf")

    # -- the request ---------------------------------------------------------------------------
    async def request(self) -> Granted | Waiting | Never:
        """Submit the job, or take it a step further, and take up its slots once its nodes answer."""
        rt = self.rt
        if time.monotonic() - self._renewed_at >= REQUEST_FRESH_S:
            await rt.db(rt.store.queue.renew, rt.attempt_id, rt.watch)
            self._renewed_at = time.monotonic()
        view = await rt.view()
        if view.paused:
            await self._cancel(await self._job(view))
            return Waiting(reason=view.reason, is_paused=True)
        if view.allocation_state == AllocationState.WAITING:
            found = await (await self._requested(view)).advance()
            if isinstance(found, Cancelled):
                await self._kill(view, found.message)
                return Waiting(reason=found.message)
            if not isinstance(found, Ready):
                return found
            await rt.db(rt.store.external_jobs.grant, rt.attempt_id, rt.watch, found.job.job_id, list(found.records))
            view = await rt.view()
        if view.allocation_state == AllocationState.GRANTED:
            await rt.db(rt.store.queue.take_up, rt.attempt_id, rt.watch)
            view = await rt.view()
        if view.allocation_state == AllocationState.STARTING:
            return Granted(slots=view.placement)
        return Waiting(reason=view.reason)

    async def changed(self) -> None:
        """Wait until the state of the job may have changed."""
        await self.rt.pause(pause_s(self._request))

    async def _requested(self, view: AttemptView) -> JobRequest:
        if self._request is None:
            self._request = JobRequest(
                self.rt.hook, view.pool, view.allocation_id, await job_ask(self.rt, view), self.rt.log, self.rt.db
            )
        return self._request

    # -- the end -------------------------------------------------------------------------------
    async def release(self, hosts: Sequence[str], *, proof: Proof) -> None:
        """Release the slots on hosts, and end the job once it holds none."""
        rt = self.rt
        await rt.db(rt.store.queue.release, rt.attempt_id, rt.watch, hosts, proof=proof)
        view = await rt.view()
        if view.allocation_state == AllocationState.RELEASED and (job := await self._job(view)) is not None:
            await self._end(job)

    async def leave(self) -> None:
        """End the job of an attempt that has ended, unless hosts have not confirmed the end of its processes."""
        view = await self.rt.view()
        if not view.held_hosts and (job := await self._job(view)) is not None:
            await self._end(job)

    async def uncleared(self) -> frozenset[str]:
        """Return the hosts whose slots the store has not released."""
        return frozenset((await self.rt.view()).held_hosts)


class ExternalGangTurn(_OfJob, GangTurn):
    """Turn of a trial on a held gang whose slots are those of a job."""

    async def request(self) -> Granted | Waiting | Never:
        """Start to use the gang, unless another task uses it.

        :raises GangEndedError: its job has ended
        """
        job = await self._refreshed()
        if job is not None and job.end is not None:
            await self.rt.db(self.rt.store.gangs.end, job.allocation_id, job.end.message)
            raise GangEndedError(f"The job of the held gang has ended: {job.end.message}")
        return await super().request()

    async def _ask_back(self, job: ExternalJob, cause: str) -> None:
        """Log it only: the tasks of a held gang have no other gang to continue on."""
        if not self._is_warned:
            self._is_warned = True
            self.rt.log.warning("The held gang ends soon: %s", cause)

    _is_warned = False


class ExternalGangSlots(GangSlots):
    """Request for a held gang as a job, as the task that acquires the gang makes it."""

    _request: JobRequest | None = None

    async def request(self) -> Granted | Waiting | Never:
        """Submit the job, or take it a step further, and hold its slots once its nodes answer."""
        view = await self._db(self.store.gangs.renew, self.allocation_id, self.watch)
        if view.state == AllocationState.WAITING:
            found = await self._job_request(view).advance()
            if isinstance(found, Cancelled):
                return Never(reason=found.message)
            if not isinstance(found, Ready):
                return found
            await self._db(
                self.store.external_jobs.grant_gang, self.allocation_id, found.job.job_id, list(found.records)
            )
            await self._keep(view, found.job)
        held = await self._db(self.store.gangs.take_up, self.allocation_id, self.watch)
        return Waiting(reason=view.reason) if held is None else Granted(slots=held.placement)

    async def changed(self) -> None:
        """Wait until the state of the job may have changed."""
        await asyncio.sleep(pause_s(self._request))

    def _job_request(self, view: GangView) -> JobRequest:
        if self._request is None:
            ask = JobAsk(name="", slots=view.slots, is_single_host=view.is_single_host)
            self._request = JobRequest(self.hook, view.pool, self.allocation_id, ask, self.log, self._db)
        return self._request

    async def _keep(self, view: GangView, job: ExternalJob) -> None:
        """Let the job live while no task uses the gang."""
        channel = CHANNELS.current(self.store.store_id, job.job_id)
        if channel is not None:
            policy = JobPolicy(orphan_timeout_s=self.hook.settings.orphan_timeout_s + view.hold_for_s)
            await in_connect_thread(channel.keep, policy)


async def job_ask(rt: Runtime, view: AttemptView) -> JobAsk:
    """Return the job that an attempt needs, without name, secret and excluded nodes."""
    from airflow_provider_dtrain.store.configs import model_of

    config = model_of(await rt.db(rt.store.configs.get, view.config_id))
    return JobAsk(
        name="",
        slots=view.slots,
        is_single_host=config.resources.is_single_host,
        stop_s=config.preemption_timeout,
        checkpoint_s=view.cost_s,
        max_runtime_s=view.max_runtime_s,
    )


def _error_of(job: ExternalJob) -> DtrainError:
    assert job.end is not None
    host = next((name for name, node in job.hosts.items() if node in job.end.nodes), next(iter(job.hosts), job.name))
    match job.end.kind:
        case EndKind.TIMEOUT | EndKind.PREEMPTED | EndKind.COMPLETED | EndKind.LOST | EndKind.CANCELLED:
            return SlotsTakenError(host, job.end.message)
        case EndKind.NODE_FAILED:
            return HostLostError(host, job.end.message)
        case _:
            return JobFailedError(job.end.message)
