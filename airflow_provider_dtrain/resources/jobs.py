"""Jobs of schedulers outside of Airflow, e.g. Slurm."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dtrain.core.external_jobs import EndKind, JobPhase


@dataclass(frozen=True, kw_only=True)
class SchedulerJob:
    """A job that holds the slots of a gang, or waits for them."""

    #: The scheduler's number; None: not known yet.
    number: str | None
    #: Name of the scheduler, as the pool's backend.
    scheduler: str
    pool: str
    allocation_id: int
    phase: JobPhase
    #: Why it waits, in the scheduler's reasons as sentences.
    reason: str
    #: Names of its nodes, which the scheduler knows; empty while it waits.
    nodes: list[str]
    submitted_at: datetime | None
    #: Expected start while it waits; None: the scheduler has no estimate.
    expected_at: datetime | None
    started_at: datetime | None
    #: Time at which the scheduler ends it at the latest; of an ended job the time of its end.
    ends_at: datetime | None
    #: Seconds from its submission to its start.
    waited_s: float | None
    end_kind: EndKind | None
    #: The end in sentences.
    end: str | None
    #: Why the scheduler wants the slots back; None: it does not.
    asked_back: str | None


@dataclass(frozen=True, kw_only=True)
class JobUse:
    """Use of a scheduler by a trial: sums over its jobs."""

    jobs: int
    #: Time for which its jobs have held nodes, in hours times nodes.
    node_hours: float
    #: Seconds from submission to start, over all jobs that have started.
    waited_s: float
    #: CPU time of its processes as a share of that of its CPUs; None: the scheduler does not account for it.
    cpu_share: float | None
