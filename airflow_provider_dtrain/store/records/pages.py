"""Results of the queries behind pages: frozen values, each attribute with its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from airflow_provider_dtrain.core.scheduling.model import AllocationState, HostState, SlotType, TrialState
from airflow_provider_dtrain.store.records.searches import ExperimentState, ExperimentView
from airflow_provider_dtrain.store.records.trials import SlotState, TaskView, TrialKey

#: DAGs whose rows a query may return; None = all.
Dags = frozenset[str] | None
ExperimentOrder = Literal[
    "created_at", "ended_at", "name", "dag_id", "state", "method", "best", "max_trials", "progress"
]
QueueClass = Literal["protected", "fresh", "overdue", "young", "old"]
QueueOrder = Literal["position", "priority", "slots", "since", "state", "pool", "experiment"]


@dataclass(frozen=True, kw_only=True)
class PoolCounts:
    """Slots and gangs of one pool."""

    name: str
    slot_type: SlotType
    hosts: int
    slots: int
    #: Free slots of ready hosts.
    free: int
    held: int
    waiting: int
    #: Gangs that hold slots.
    running: int


@dataclass(frozen=True, slots=True)
class SlotCell:
    """One slot of the cluster."""

    enabled: bool
    state: SlotState
    #: Reason why it is not ready.
    note: str
    device: str | None
    #: The gang that holds it; None = free.
    allocation_id: int | None


@dataclass(frozen=True, kw_only=True)
class HostCells:
    """One host with its slots by index."""

    name: str
    pool: str
    state: HostState
    state_reason: str
    state_since: datetime | None
    slot_type: SlotType
    device_name: str | None
    cells: Sequence[SlotCell]


@dataclass(frozen=True, kw_only=True)
class HolderView:
    """One gang that holds slots."""

    allocation_id: int
    state: AllocationState
    slots: int
    #: Time of the grant.
    since: datetime
    #: The task that requested the gang.
    key: TrialKey
    #: None for a held gang that no trial uses now.
    trial_id: int | None
    trial_number: int | None
    hparams: Mapping[str, Any] | None
    is_drawn: bool
    config_id: int | None
    experiment_id: int | None
    #: Of a held gang: the task that it belongs to, in words.
    experiment: str
    #: A gang that GangSensor holds for several tasks.
    is_held_gang: bool


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """All pools, hosts and holders of one moment."""

    pools: Sequence[PoolCounts]
    hosts: Sequence[HostCells]
    #: By id of the allocation.
    holders: Mapping[int, HolderView]


@dataclass(frozen=True, kw_only=True)
class QueueQuery:
    """One page of the queue."""

    pool: str | None = None
    state: AllocationState | None = None
    #: Part of the name of an experiment, DAG, task or DAG run, or the id of a trial; empty = all.
    text: str = ""
    dags: Dags = None
    sort: QueueOrder = "position"
    descending: bool = False
    limit: int = 100
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """A gang of the queue with the facts that order it."""

    task: TaskView
    #: Best class first.
    queue_class: QueueClass
    expected_at: datetime | None
    is_held_gang: bool
    hparams: Mapping[str, Any] | None
    is_drawn: bool
    config_id: int | None


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Texts that users give to an experiment or a trial."""

    #: None = the name from the configuration.
    display_name: str | None = None
    description: str = ""
    #: Sorted, without duplicates.
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExperimentQuery:
    """One page of the table of experiments."""

    #: Part of a name or description, of the DAG or DAG run, or the id; empty = all.
    text: str = ""
    state: ExperimentState | None = None
    dag_id: str | None = None
    #: Experiments that have all of these.
    tags: Sequence[str] = ()
    dags: Dags = None
    sort: ExperimentOrder = "created_at"
    descending: bool = True
    limit: int = 100
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class ExperimentEntry:
    """An experiment in a table."""

    view: ExperimentView
    labels: Labels
    #: Trials that have ended.
    ended: int
    #: From the durations of its ended trials; None = no estimate.
    expected_end: datetime | None


@dataclass(frozen=True, kw_only=True)
class FoundTrial:
    """A trial behind a task instance."""

    trial_id: int
    experiment_id: int
    number: int
    hparams: Mapping[str, Any]
    is_drawn: bool
    config_id: int
    state: TrialState
    key: TrialKey
    #: False: a newer trial of its task, or a newer plan, has replaced it.
    is_current: bool


@dataclass(frozen=True, kw_only=True)
class FoundExperiment:
    """An experiment of a DAG run."""

    experiment_id: int
    name: str
    state: ExperimentState
