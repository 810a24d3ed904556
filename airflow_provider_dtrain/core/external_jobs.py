"""Jobs of a scheduler outside of Airflow, e.g. Slurm: each holds the slots of one gang.

The store, the engine and the schedulers under ``hosts/`` share these records. None of them has a word of one scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from airflow_provider_dtrain.core.lifecycle.states import State

#: Backend of a pool whose slots the queue of the store gives out. Other backends are names of external schedulers.
OWN_BACKEND: Final = "hosts"
#: Begin of the name under which a scheduler requests that a trial is killed. No user has such a name.
_SCHEDULER: Final = "the scheduler of pool "


class JobPhase(State):
    """State of an external job."""

    SUBMITTING = "submitting", "it is about to be submitted, or was, and its number is not known"
    WAITING = "waiting", "its scheduler has it in its queue"
    RUNNING = "running", "it holds its slots"
    ENDING = "ending", "it has ended, and processes of it may be left on its nodes"
    ENDED = "ended", "nothing of it is left; this is final"


class EndKind(StrEnum):
    """Why a job ended. It decides what follows for its trial."""

    #: Its program ended, or it was ended on our request.
    COMPLETED = "completed"
    #: Its time was over.
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    #: A node failed while it ran, or could not be started.
    NODE_FAILED = "node_failed"
    OUT_OF_MEMORY = "out_of_memory"
    #: A user ended it with the scheduler's own command.
    CANCELLED = "cancelled"
    #: Its script failed before a supervisor answered.
    FAILED = "failed"
    #: A signal ended its script, or the scheduler did not answer it.
    INTERRUPTED = "interrupted"
    #: The scheduler knows nothing of it.
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """The end of a job."""

    kind: EndKind
    #: In a sentence, with the scheduler's own words.
    message: str
    #: Nodes that failed. Processes of the job may be left there, because nothing could end them.
    nodes: tuple[str, ...] = ()
    #: CPU time that its processes used, as a share of that of its CPUs; None: not known.
    cpu_share: float | None = None


def scheduler_name(pool: str, message: str) -> str:
    """Return the name under which the scheduler of a pool requests that a trial is killed.

    :param message: why, in a sentence
    """
    return f"{_SCHEDULER}'{pool}': {message.removesuffix('.')}"


def is_scheduler(name: str | None) -> bool:
    """Return whether a request to kill a trial came from a scheduler, and not from a user."""
    return name is not None and name.startswith(_SCHEDULER)


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """A job as its scheduler reports it."""

    number: str
    name: str
    phase: JobPhase
    #: Why it waits, as sentences; empty when it does not.
    reason: str = ""
    #: Names of its nodes once it runs; the first one is the one that runs its script.
    nodes: tuple[str, ...] = ()
    started_at: datetime | None = None
    #: Time at which the scheduler ends it at the latest; of an ended job the time of its end.
    ends_at: datetime | None = None
    #: Time at which the scheduler expects to start it while it waits; None: it has no estimate.
    expected_at: datetime | None = None
    end: JobEnd | None = None
    #: True: it waits, and will never start as the cluster and its request are.
    is_hopeless: bool = False


@dataclass(frozen=True, kw_only=True)
class JobAsk:
    """A job to be submitted."""

    #: Unique among the jobs of all stores.
    name: str
    slots: int
    #: All slots must be on one node.
    is_single_host: bool = False
    #: Nodes that it must not use.
    excluded: Sequence[str] = ()
    #: Secret of the channel to its nodes, as :class:`.ExternalScheduler` made it.
    access: bytes = b""
    #: Seconds that its ranks may take to write a checkpoint and end, and seconds that this took before.
    stop_s: float = 60.0
    checkpoint_s: float | None = None
    #: Longest time that the configuration allows its ranks, None without a limit.
    max_runtime_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ExternalJob:
    """A job in the store."""

    job_id: int
    allocation_id: int
    pool: str
    name: str
    #: The scheduler's number; None: not known yet.
    number: str | None
    phase: JobPhase
    reason: str
    #: Name of the host in the store -> name of its node.
    hosts: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    #: Encrypted secret of the channel to its nodes.
    access: bytes = b""
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    #: Time at which the scheduler ends it at the latest; of an ended job the time of its end.
    ends_at: datetime | None = None
    expected_at: datetime | None = None
    #: Time at which the store learned of its end.
    ended_at: datetime | None = None
    end: JobEnd | None = None
    #: Why its scheduler wants the slots back; None: it does not.
    asked_back: str | None = None
    #: True: it waits, and will never start as the cluster and its request are.
    is_hopeless: bool = False
    #: True: we have cancelled it.
    is_cancelled: bool = False

    @property
    def clear_hosts(self) -> frozenset[str]:
        """Hosts of the job on which no process of it is left."""
        failed = set(self.end.nodes) if self.end is not None else set()
        return frozenset(name for name, node in self.hosts.items() if self.is_over and node not in failed)

    @property
    def is_over(self) -> bool:
        """True when it has ended on all nodes that have not failed."""
        return self.phase == JobPhase.ENDED

    @property
    def waited_s(self) -> float | None:
        """Seconds from its submission to its start, None if it has not started."""
        if self.submitted_at is None or self.started_at is None:
            return None
        return max(0.0, (self.started_at - self.submitted_at).total_seconds())

    def node_s(self, now: datetime) -> float:
        """Return the time for which it has held its nodes, in seconds times nodes."""
        if self.started_at is None:
            return 0.0
        until = (self.ends_at or self.ended_at or now) if self.is_over else now
        return len(self.nodes) * max(0.0, (until - self.started_at).total_seconds())


def warning_lead_s(*, limit_s: float, stop_s: float, checkpoint_s: float | None = None) -> float:
    """Return how long before the end of a job its ranks are asked to stop.

    :param limit_s: time limit of the job
    :param stop_s: time that ranks may take to write a checkpoint and end
    :param checkpoint_s: measured time of a checkpoint, None if none was measured
    """
    leads = [stop_s + 60.0, limit_s / 4.0, *([3.0 * checkpoint_s] if checkpoint_s is not None else [])]
    return max(1.0, min(leads))


def end_of(document: Mapping[str, Any] | None) -> JobEnd | None:
    """Return the end of a job from its stored form."""
    if document is None:
        return None
    return JobEnd(
        kind=EndKind(document["kind"]),
        message=str(document["message"]),
        nodes=tuple(document.get("nodes") or ()),
        cpu_share=document.get("cpu_share"),
    )
