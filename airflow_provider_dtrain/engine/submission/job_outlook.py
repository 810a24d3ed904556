"""Outlook of a gang in a pool whose slots an external scheduler gives out: the job that it would be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.timeline import duration
from airflow_provider_dtrain.engine.slots.scheduler_facts import FRESH
from airflow_provider_dtrain.errors import SubmissionRefusedError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.external_jobs import ExternalJob
    from airflow_provider_dtrain.core.scheduler_facts import JobShape, PartitionFacts, SchedulerFacts
    from airflow_provider_dtrain.store.records.trials import Pool
    from airflow_provider_dtrain.store.store import Store


def shape_of(pool: Pool, facts: SchedulerFacts, slots: int, *, is_single_host: bool) -> JobShape:
    """Return the nodes of the job that a gang would be.

    :raises SubmissionRefusedError: no job can serve it
    """
    from airflow_provider_dtrain.hosts.schedulers.registry import scheduler_kind

    return scheduler_kind(pool.backend).shape(facts, slots, is_single_host=is_single_host)


def refusal(store: Store, pool: Pool, slots: int, *, is_single_host: bool) -> str | None:
    """Return why no job can serve a gang, None if one can, or if the facts of the scheduler are old."""
    facts = pool.facts
    if facts is None or store.db.now() - facts.at > FRESH:
        return None
    try:
        shape_of(pool, facts, slots, is_single_host=is_single_host)
    except SubmissionRefusedError as error:
        return str(error)
    return None


def before_submission(pool: Pool, slots: int, *, is_single_host: bool) -> dict[str, Any]:
    """Return the fields of an explanation for a gang without a job."""
    if pool.facts is None:
        reason = (
            f"Not known before the job is submitted: {pool.backend} gives out the slots of the pool, and has not "
            f"answered yet. See: airflow dtrain pools describe {pool.name}"
        )
        return {"outlook": "later", "reason": reason}
    try:
        shape = shape_of(pool, pool.facts, slots, is_single_host=is_single_host)
    except SubmissionRefusedError as error:
        return {"outlook": "never", "reason": str(error), **_limits(pool.facts)}
    limit = "" if shape.time_limit_s is None else f", for at most {duration(shape.time_limit_s)}"
    reason = (
        f"Not known before the job is submitted: {pool.backend} decides when it starts. It would be a job of "
        f"{shape.text} in partition '{shape.partition}'{limit}."
    )
    if (obstacle := _obstacle(pool, pool.facts, slots, is_single_host=is_single_host)) is not None:
        reason = f"{obstacle} {reason}"
    if pool.facts.excluding:
        reason += f" Not considered, and possibly fewer nodes or none: {', '.join(pool.facts.excluding)}."
    return {"outlook": "later", "nodes": shape.text, "reason": reason, **_limits(pool.facts)}


def _obstacle(pool: Pool, facts: SchedulerFacts, slots: int, *, is_single_host: bool) -> str | None:
    """Return why a job could not start now even on an empty cluster, in a sentence, None if it could."""
    used = facts.used
    if used is None:
        return None
    if used.state != "UP":
        return f"Partition '{used.name}' is {used.state}, and starts no job until an administrator changes that."
    partitions = [replace(one, sizes=one.usable_sizes) for one in facts.partitions]
    try:
        shape_of(pool, replace(facts, partitions=partitions), slots, is_single_host=is_single_host)
    except SubmissionRefusedError:
        away = used.nodes - used.usable_nodes
        return (
            f"It waits until nodes come back: {away} of {used.nodes} nodes of partition '{used.name}' are down, "
            "drained or silent, and the others do not suffice."
        )
    return None


def of_job(job: ExternalJob) -> dict[str, Any]:
    """Return the fields of an explanation for a gang with a job."""
    return {
        "job": job.number or job.name,
        "job_state": job.phase.meaning,
        "nodes": ", ".join(job.nodes) or None,
        "submitted": job.submitted_at,
        "job_ends": job.ends_at,
    }


def waiting_reason(job: ExternalJob | None, pool: str) -> str:
    """Return why a gang waits whose request has no reason yet."""
    if job is None:
        return f"its job for pool '{pool}' is not submitted yet"
    return job.reason or f"job {job.number or job.name} is {job.phase}: {job.phase.meaning}"


def sizes_text(partition: PartitionFacts) -> str:
    """Return the sizes of the nodes of a partition in words."""
    return ", ".join(f"{one.nodes} with {one.slots}" for one in partition.sizes) or "no node with a slot"


def _limits(facts: SchedulerFacts) -> dict[str, Any]:
    used = facts.used
    if used is None:
        return {}
    longest = "none" if used.max_time_s is None else duration(used.max_time_s)
    return {"partition": used.name, "node_slots": sizes_text(used), "longest_job": longest}
