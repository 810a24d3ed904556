"""Entries about the jobs of a trial at an external scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy.engine import Row

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry, TimelineKind, duration
from airflow_provider_dtrain.store.records.external_jobs import job_of_row
from airflow_provider_dtrain.store.timeline.history import History

#: Nodes that a sentence lists.
_SHOWN_NODES = 8


def job_entries(history: History) -> Iterator[TimelineEntry]:
    """Yield submission, start and end of each job."""
    for row in history.jobs:
        yield from _entries(history, row)


def _entries(history: History, row: Row[Any]) -> Iterator[TimelineEntry]:
    job = job_of_row(row)
    name = f"Job {job.number} of {row.backend}" if job.number is not None else f"The job '{job.name}'"
    detail = {"job": job.number, "scheduler": row.backend}
    if job.submitted_at is not None:
        yield TimelineEntry(
            at=job.submitted_at,
            kind=TimelineKind.JOB_SUBMITTED,
            attempt=history.attempt_of(job.allocation_id, job.submitted_at),
            text=f"{name} was submitted to pool '{job.pool}'.",
            detail=detail,
        )
    if job.started_at is not None:
        waited = "" if job.waited_s is None else f", {duration(job.waited_s)} after its submission"
        yield TimelineEntry(
            at=max(job.started_at, job.submitted_at or job.started_at),
            until=(job.ends_at or job.ended_at) if job.is_over else None,
            kind=TimelineKind.JOB_STARTED,
            attempt=history.attempt_of(job.allocation_id, job.started_at),
            text=f"{name} started on {_nodes(job.nodes)}{waited}.",
            detail={**detail, "nodes": len(job.nodes), "waited_s": job.waited_s},
        )
    if job.end is not None and job.ended_at is not None:
        yield TimelineEntry(
            at=job.ended_at,
            kind=TimelineKind.JOB_ENDED,
            attempt=history.attempt_of(job.allocation_id, job.ended_at),
            host=job.end.nodes[0] if len(job.end.nodes) == 1 else None,
            text=job.end.message,
            detail={
                **detail,
                "end": job.end.kind,
                "asked_back": job.asked_back,
                "node_hours": round(job.node_s(history.now) / 3600.0, 3),
                "cpu_share": job.end.cpu_share,
            },
        )


def _nodes(nodes: tuple[str, ...]) -> str:
    if len(nodes) <= _SHOWN_NODES:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:_SHOWN_NODES])} and {len(nodes) - _SHOWN_NODES} more nodes"
