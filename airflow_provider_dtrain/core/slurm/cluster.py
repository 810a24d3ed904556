"""Records of a cluster: its nodes and partitions, its configuration, and its jobs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from airflow_provider_dtrain.core.external_jobs import warning_lead_s
from airflow_provider_dtrain.core.slurm.job_states import FINAL, WAITING, JobState
from airflow_provider_dtrain.core.slurm.options import SlurmOptions
from airflow_provider_dtrain.core.slurm.releases import Version

_POWER: Final = re.compile(r"POWER(?:ED|ING)?_DOWN")
#: Words in the state of a node that starts no further job by itself.
_UNUSABLE: Final = ("DOWN", "DRAIN", "FAIL", "MAINT", "INVAL", "UNKNOWN", "FUTURE", "PERFCTRS", "NO_RESPOND", "BLOCKED")


@dataclass(frozen=True, kw_only=True)
class Node:
    """Node of a partition."""

    name: str
    #: State in capital letters, without the marks that ``sinfo`` adds, e.g. ``IDLE`` or ``MIXED``.
    state: str
    cpus: int
    memory_mib: int
    #: (name, type or "", count) of each generic resource, e.g. ``("gpu", "a100", 8)``.
    gres: tuple[tuple[str, str, int], ...] = ()
    #: Text of an administrator about a node that is down or drained.
    reason: str = ""
    #: Slurm cannot reach the node at this moment.
    is_silent: bool = False

    @property
    def is_usable(self) -> bool:
        """The node can get jobs, now or after those that run there."""
        # A node that is powered down boots when it is needed.
        state = _POWER.sub("", self.state)
        return not self.is_silent and not any(word in state for word in _UNUSABLE)

    def slots(self, options: SlurmOptions) -> int:
        """Return the number of slots that the node has for a pool."""
        if options.slots == "cpu":
            return self.cpus // (options.cpus_per_slot or 1)
        kind = options.gres_name or "gpu"
        count = sum(count for name, type_, count in self.gres if name == kind and options.gres_type in (None, type_))
        by_cpus = self.cpus // options.cpus_per_slot if options.cpus_per_slot else count
        return min(count, by_cpus)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Partition of a cluster."""

    name: str
    is_default: bool
    #: ``UP``, ``DOWN``, ``DRAIN`` or ``INACTIVE``.
    state: str
    #: None: no limit.
    max_time_s: int | None
    #: None: none is set.
    default_time_s: int | None
    #: Time between SIGTERM and SIGKILL of a preempted job; None: not known.
    grace_time_s: int | None = None
    #: As Slurm writes it, e.g. ``REQUEUE``, ``CANCEL`` or ``OFF``.
    preempt_mode: str = ""
    nodes: tuple[Node, ...] = ()

    def sizes(self, options: SlurmOptions, *, are_usable: bool = False) -> dict[int, int]:
        """Return slots of a node -> number of such nodes.

        :param are_usable: only of nodes that can get jobs, now or after those that run there
        """
        limit = options.slots_per_node
        counts = Counter(node.slots(options) for node in self.nodes if node.is_usable or not are_usable)
        sizes: Counter[int] = Counter()
        for size, count in counts.items():
            sizes[size if limit is None else min(size, limit)] += count
        return {size: count for size, count in sorted(sizes.items()) if size > 0}


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Facts of a cluster that decide how jobs run and end. None: the cluster does not state it."""

    cluster: str
    version: Version | None
    proctrack: str
    select: str
    preempt_mode: frozenset[str]
    preempt_type: str
    kill_wait_s: int
    min_job_age_s: int
    priority_flags: frozenset[str]
    has_accounting: bool
    #: Accounts, QOS and limits are checked when a job is submitted.
    enforces: frozenset[str]
    max_job_count: int | None
    max_array_size: int | None
    #: Data of other accounts that this one cannot see.
    private_data: frozenset[str]
    #: Number of the next job, None if it is not stated.
    next_job_id: int | None = None

    @property
    def contains_processes(self) -> bool:
        """Slurm ends every process of a job: only control groups do."""
        return self.proctrack == "proctrack/cgroup"

    @property
    def accrues_while_held(self) -> bool:
        """The waiting time of a job that depends on another one counts for its priority."""
        return "ACCRUE_ALWAYS" in self.priority_flags


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """Job of ours as the controller or the accounting reports it."""

    job_id: int
    name: str
    state: JobState
    #: Pending reason or reason of the end, as Slurm writes it, e.g. ``Resources``.
    reason: str
    partition: str = ""
    #: Names of its nodes in Slurm's order, () while it waits.
    nodes: tuple[str, ...] = ()
    #: Node of the batch script; "" while it waits.
    batch_node: str = ""
    #: Times are seconds since 1970.
    submitted_s: float | None = None
    eligible_s: float | None = None
    #: Time at which Slurm expects to start it while it waits.
    expected_start_s: float | None = None
    started_s: float | None = None
    #: Time of its end, or of its limit while it runs.
    ends_s: float | None = None
    time_limit_s: int | None = None
    exit_code: int | None = None
    #: Signal that ended the batch script; 0: none.
    signal: int = 0
    #: How often it was put back into the queue.
    restarts: int | None = None
    comment: str = ""
    #: Node whose failure ended it, "" if Slurm does not state it: 22.05 does not.
    failed_node: str = ""
    #: Number of the account that cancelled it, None if it is not known.
    cancelled_by: int | None = None

    @property
    def is_final(self) -> bool:
        """The controller has ended the job on all of its nodes."""
        return self.state in FINAL

    @property
    def was_refused(self) -> bool:
        """The controller refused the submission and keeps a record of it: no such job ever ran."""
        return self.state == JobState.FAILED and self.reason == "BadConstraints" and not self.nodes

    @property
    def is_waiting(self) -> bool:
        """The job waits for nodes."""
        return self.state in WAITING


@dataclass(frozen=True, kw_only=True)
class NoTimeLimit:
    """Reason why a job has no time limit that can be given."""

    reason: str


def time_limit_of(options: SlurmOptions, partition: Partition | None) -> int | NoTimeLimit:
    """Return the time limit of a job in seconds: of the pool, else DefaultTime, else MaxTime of the partition.

    A job without a limit is never given, since it would not start before a maintenance window.
    """
    maximum = partition.max_time_s if partition else None
    if (limit := options.time_limit_s) is not None:
        if partition and maximum is not None and limit > maximum:
            return NoTimeLimit(
                reason=f"--time-limit {options.time_limit} is above MaxTime of partition '{partition.name}', which is "
                f"{maximum // 60} minutes. Set it to at most {maximum // 60}m."
            )
        return limit
    chosen = (partition.default_time_s if partition else None) or maximum
    if chosen is None:
        name = f"Partition '{partition.name}'" if partition else "The default partition"
        return NoTimeLimit(reason=f"{name} has neither DefaultTime nor MaxTime. Set --time-limit of the pool.")
    return chosen if maximum is None else min(chosen, maximum)


def warning_s(*, limit_s: float, stop_s: float, checkpoint_s: float | None = None) -> int:
    """Return how long before its end Slurm warns a job. ``sbatch`` accepts 65535 s at most."""
    return min(65535, int(warning_lead_s(limit_s=limit_s, stop_s=stop_s, checkpoint_s=checkpoint_s)))


def partition_of(options: SlurmOptions, partitions: Iterable[Partition]) -> Partition | None:
    """Return the partition of a pool: of several the first, without one the default, None if there is none."""
    by_name: Mapping[str, Partition] = {one.name: one for one in partitions}
    if options.partition is None:
        return next((one for one in by_name.values() if one.is_default), None)
    return next((by_name[name] for name in options.partition.split(",") if name in by_name), None)
