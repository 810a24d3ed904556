"""Jobs of external schedulers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_dtrain.resources.jobs import JobUse, SchedulerJob

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.external_jobs import ExternalJob
    from airflow_provider_dtrain.core.scheduler_facts import SchedulerFacts
    from airflow_provider_dtrain.store.records.trials import Pool
    from airflow_provider_dtrain.store.store import Store


def backends_of(pools: Sequence[Pool]) -> dict[str, str]:
    """Return pool -> name of the external scheduler that gives out its slots, without pools of the own queue."""
    return {pool.name: pool.backend for pool in pools if pool.is_external}


def live_jobs(store: Store, pools: Sequence[Pool], pool: str | None = None) -> list[SchedulerJob]:
    """Return the jobs that have not ended, by id.

    :param pools: of the store
    :param pool: only of this pool; None = of all
    """
    backends = backends_of(pools)
    found = store.external_jobs.live(pool) if backends else []
    return [job_of(one, backends.get(one.pool, "")) for one in found]


def facts_of(pools: Sequence[Pool], pool: str | None = None) -> dict[str, SchedulerFacts]:
    """Return pool -> facts of its external scheduler, as far as they are stored."""
    return {one.name: one.facts for one in pools if one.facts is not None and pool in (None, one.name)}


def jobs_of_gangs(store: Store, backends: Mapping[int, str]) -> dict[int, SchedulerJob]:
    """Return the newest jobs of gangs by allocation.

    :param backends: id of the allocation -> name of its scheduler
    """
    found = store.external_jobs.newest_of(backends.keys()) if backends else {}
    return {allocation_id: job_of(one, backends[allocation_id]) for allocation_id, one in found.items()}


def job_of(job: ExternalJob, scheduler: str) -> SchedulerJob:
    """Return a job without its secret."""
    return SchedulerJob(
        number=job.number,
        scheduler=scheduler,
        pool=job.pool,
        allocation_id=job.allocation_id,
        phase=job.phase,
        reason=job.reason,
        nodes=list(job.nodes),
        submitted_at=job.submitted_at,
        expected_at=job.expected_at,
        started_at=job.started_at,
        ends_at=job.ends_at,
        waited_s=job.waited_s,
        end_kind=None if job.end is None else job.end.kind,
        end=None if job.end is None else job.end.message,
        asked_back=job.asked_back,
    )


def use_of(jobs: Collection[ExternalJob], now: datetime) -> JobUse | None:
    """Return the use of a scheduler by a trial, None without a job."""
    if not jobs:
        return None
    known = [(job.node_s(now), job.end.cpu_share) for job in jobs if job.end is not None]
    accounted = [(node_s, share) for node_s, share in known if share is not None and node_s > 0]
    total_s = sum(node_s for node_s, _ in accounted)
    return JobUse(
        jobs=len(jobs),
        node_hours=sum(job.node_s(now) for job in jobs) / 3600.0,
        waited_s=sum(job.waited_s or 0.0 for job in jobs),
        cpu_share=sum(node_s * share for node_s, share in accounted) / total_s if total_s else None,
    )
