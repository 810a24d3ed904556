"""Hosts, their slots, and the gangs that hold them. A cluster has thousands of slots, so most fields have defaults."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_provider_dtrain.core.lifecycle.states import AllocationState, HostState
from airflow_provider_dtrain.core.scheduler_facts import SchedulerFacts
from airflow_provider_dtrain.core.scheduling.model import SlotType
from airflow_provider_dtrain.resources.jobs import SchedulerJob
from airflow_provider_dtrain.resources.pools import PoolCounts
from airflow_provider_dtrain.resources.tasks import TaskRef

#: ``stuck``: a process in it cannot be killed; ``busy_elsewhere``: a process outside this store holds it.
SlotState = Literal["ready", "stuck", "busy_elsewhere"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot. Its index is its place in the list of its host. It can be held, disabled and stuck at the same time."""

    state: SlotState = "ready"
    #: False: it gets no gang, or no other one than that which holds it.
    is_enabled: bool = True
    #: Reason why it is not ready: the processes that are left in it, or its holder. Empty for users who may not read
    #: every DAG, unless they may read that of the gang that holds it.
    note: str = ""
    #: The gang that holds it; None = free.
    allocation_id: int | None = None
    #: UUID of the GPU; only with details.
    device: str | None = None
    #: Only with details, and if it is not that of the host.
    device_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class HostDetails:
    """Facts of a host that the page of all hosts does not show."""

    #: Airflow connection; None: it is this machine, or the user may not edit its connection.
    conn_id: str | None
    python: str | None
    torch: str | None
    #: Environments from lock files that it had at its last probe, and their bytes.
    environments: int
    environments_bytes: int
    #: Ids of other stores that use it.
    other_stores: list[str]


@dataclass(frozen=True, kw_only=True)
class ClusterHost:
    """A host with its slots."""

    name: str
    pool: str
    state: HostState = HostState.READY
    state_reason: str = ""
    state_since: datetime | None = None
    #: Slow ranks that were named on it in the last seven days.
    slow_ranks: int = 0
    #: Time by which no gang may be left on a draining host; None: its gangs may finish.
    drain_by: datetime | None = None
    slot_type: SlotType = "cuda"
    device_name: str | None = None
    slots: list[Slot]
    #: The external scheduler's number of the job whose node it is; None: it is registered.
    job: str | None = None
    #: Sentences of its last check that name it as slow, one per line, the gravest first.
    findings: str = ""
    #: None: they were not requested.
    details: HostDetails | None = None


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A gang that holds slots."""

    allocation_id: int
    #: None: a held gang that no trial uses now.
    trial_id: int | None
    experiment_id: int | None
    #: Name of the experiment; of a held gang: its task, in words.
    experiment: str
    #: Number of the trial with its hyperparameters, as in Airflow's list of mapped task instances.
    trial_name: str | None
    #: The task that requested the gang.
    task: TaskRef | None
    since: datetime
    slots: int
    state: AllocationState
    #: It is of a DAG that the user may not read: its names are left out.
    is_hidden: bool


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """All pools, holders and hosts."""

    at: datetime
    pools: list[PoolCounts]
    #: Id of the allocation -> the gang.
    holders: dict[str, Holder]
    hosts: list[ClusterHost]
    #: Pool -> its external scheduler, as last requested.
    schedulers: dict[str, SchedulerFacts]
    #: Jobs of external schedulers that have not ended.
    jobs: list[SchedulerJob]
