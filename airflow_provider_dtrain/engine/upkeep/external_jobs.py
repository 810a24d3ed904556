"""Upkeep of external jobs: states of those whose followers died, and the end of those that no gang needs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_provider_dtrain.engine.session.threads import in_connect_thread, in_thread
from airflow_provider_dtrain.engine.slots.job_request import poll
from airflow_provider_dtrain.errors import SchedulerAwayError
from airflow_provider_dtrain.hooks.schedulers import ascheduler

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.external_jobs import ExternalJob
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hosts.schedulers.base import ExternalScheduler


async def tend_jobs(hook: DtrainHook) -> None:
    """Poll the schedulers of unfinished jobs where that is due, cancel surplus jobs, and remove hosts of ended ones."""
    jobs = hook.store.external_jobs
    for name in await in_thread(jobs.unfinished_pools):
        pool = await in_thread(hook.store.pools.get, name)
        scheduler = await ascheduler(pool)
        with contextlib.suppress(SchedulerAwayError):
            await poll(hook, name, scheduler, in_thread)
            surplus = [job for job in await in_thread(jobs.surplus) if job.pool == name]
            await in_thread(jobs.cancelling, [job.job_id for job in surplus])
            if numbers := await _numbers(scheduler, surplus):
                await in_connect_thread(scheduler.cancel, numbers)
    await in_thread(jobs.remove_hosts)


async def _numbers(scheduler: ExternalScheduler, surplus: list[ExternalJob]) -> list[str]:
    """Return the numbers of jobs, with those that the scheduler has although the store does not know it."""
    unknown = [job.name for job in surplus if job.number is None and job.submitted_at is not None]
    found = await in_connect_thread(scheduler.find, unknown) if unknown else {}
    return [*(job.number for job in surplus if job.number), *(one.number for of in found.values() for one in of)]
