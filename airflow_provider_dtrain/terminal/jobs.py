"""Jobs of external schedulers and their partitions as lines of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.timeline import duration
from airflow_provider_dtrain.terminal.output import short_time

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.scheduler_facts import PartitionFacts, SchedulerFacts
    from airflow_provider_dtrain.resources.jobs import JobUse, SchedulerJob


def described_facts(facts: SchedulerFacts) -> dict[str, Any]:
    """Return the facts of a scheduler as lines."""
    return {
        "scheduler": f"{facts.program}, cluster '{facts.cluster}'",
        "job_time": None if facts.time_limit_s is None else f"at most {duration(facts.time_limit_s)}",
        "problem": facts.problem or None,
        "partitions": "\n".join(_partition(one) for one in facts.partitions),
        "requested": facts.at,
    }


def _partition(one: PartitionFacts) -> str:
    sizes = ", ".join(f"{size.nodes} with {size.slots}" for size in one.sizes) or "none has a slot"
    longest = "no longest job" if one.max_time_s is None else f"jobs of at most {duration(one.max_time_s)}"
    used = " (of this pool)" if one.is_used else ""
    return f"{one.name}{used}: {one.state}, {one.usable_nodes} of {one.nodes} nodes usable, slots: {sizes}, {longest}"


def job_line(job: SchedulerJob) -> str:
    """Return a job in one line."""
    name = job.number or "no number yet"
    if job.started_at is not None:
        until = "" if job.ends_at is None else f", until {short_time(job.ends_at)} at the latest"
        return f"{name}: {job.phase} on {', '.join(job.nodes)} since {short_time(job.started_at)}{until}"
    expected = "" if job.expected_at is None else f" Expected start: {short_time(job.expected_at)}."
    return f"{name}: {job.phase}. {job.reason}{expected}".rstrip()


def use_line(use: JobUse | None) -> str | None:
    """Return the use of a scheduler by a trial in one line, None without a job."""
    if use is None:
        return None
    jobs = "1 job" if use.jobs == 1 else f"{use.jobs} jobs"
    share = "" if use.cpu_share is None else f", CPU efficiency {use.cpu_share:.0%}"
    return f"{jobs}, {use.node_hours:.2f} node hours, {duration(use.waited_s)} from submission to start{share}"
