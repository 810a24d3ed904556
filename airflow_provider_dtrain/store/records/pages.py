"""Results of the queries behind pages: frozen values, each attribute with its meaning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from airflow_provider_dtrain.core.expressions.tree import Expression
from airflow_provider_dtrain.core.lifecycle.control import Archived
from airflow_provider_dtrain.core.lifecycle.states import AllocationState, ExperimentState, HostState, TrialState
from airflow_provider_dtrain.core.scheduling.model import SlotType
from airflow_provider_dtrain.core.search.asha import Decision
from airflow_provider_dtrain.core.search.trial_progress import TrialProgress
from airflow_provider_dtrain.resources.gangs import QueueClass
from airflow_provider_dtrain.resources.hosts import Slot
from airflow_provider_dtrain.resources.pools import PoolCounts
from airflow_provider_dtrain.store.records.searches import ExperimentView
from airflow_provider_dtrain.store.records.trials import TaskView, TrialKey, TrialView

#: DAGs whose rows a query may return; None = all.
Dags = frozenset[str] | None
ExperimentOrder = Literal[
    "created_at", "ended_at", "name", "dag_id", "state", "method", "best", "max_trials", "progress", "owner", "project"
]
TrialOrder = Literal[
    "number", "state", "best_metric", "units", "rung", "created_at", "ended_at", "restarts", "duration_s"
]
TrialChoice = Literal["best", "latest", "spread"]
QueueOrder = Literal["position", "priority", "slots", "since", "state", "pool", "experiment"]


class HeldRange(NamedTuple):
    """Neighbouring slots of a host that one gang holds."""

    allocation_id: int
    first: int
    last: int


class HostMark(NamedTuple):
    """Everything about a host that can change, so that equal marks stand for equal views."""

    name: str
    pool: str
    state: HostState
    state_reason: str
    #: As the driver returns it.
    state_since: datetime | None
    #: As the driver returns it.
    drain_by: datetime | None
    slot_type: SlotType
    #: The external scheduler's number of the job whose node it is; None: it is registered.
    job: str | None
    #: Sentences of its last check that name it, one per line.
    findings: str
    device_name: str | None
    #: Number of its slots.
    slots: int
    #: Its slots by index, without their holders; empty: all are enabled and ready.
    cells: tuple[Slot, ...]
    held: tuple[HeldRange, ...]
    #: Slow ranks that were named on it lately.
    slow_ranks: int = 0


class HolderMark(NamedTuple):
    """Everything about a gang that holds slots that can change, so that equal marks stand for equal views."""

    allocation_id: int
    state: AllocationState
    #: Of its grant; None for a gang that holds no slots.
    token: int | None
    slots: int
    #: The attempt that uses a held gang, else 0.
    user: int
    #: Number of the sample of its trial, from 1; 0: none.
    sample: int
    dag_id: str


@dataclass(frozen=True, kw_only=True)
class HolderView:
    """One gang that holds slots."""

    mark: HolderMark
    #: Time of the grant.
    since: datetime
    #: The task that requested the gang.
    key: TrialKey
    #: None for a held gang that no trial uses now.
    trial_id: int | None
    trial_number: int | None
    #: Id and map index of its task, which may be another one than that of the gang.
    trial_task: tuple[str, int]
    #: As JSON.
    hparams: str | None
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
    hosts: Sequence[HostMark]
    holders: Sequence[HolderMark]


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
    #: None = all.
    limit: int | None = 100
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """A gang of the queue with the facts that order it."""

    task: TaskView
    #: Best class first.
    queue_class: QueueClass
    expected_at: datetime | None
    is_held_gang: bool
    #: Id and map index of the trial's task, which may be another one than that of the gang.
    trial_task: tuple[str, int]
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
    #: Part of the name from the configuration or of the display name; empty = all.
    name: str = ""
    state: ExperimentState | None = None
    #: True: only those of which no trial runs, and no set of the pool's hosts can serve a request.
    never_fits: bool = False
    dag_id: str | None = None
    run_id: str | None = None
    #: Experiments that have all of these.
    tags: Sequence[str] = ()
    #: None: of all owners, and in all projects.
    owner: str | None = None
    project: str | None = None
    archived: Archived = "no"
    dags: Dags = None
    sort: ExperimentOrder = "created_at"
    descending: bool = True
    limit: int = 100
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class PageVersion:
    """Version of everything that a page shows, and the DAGs of its rows."""

    digest: str
    dags: frozenset[str]


def page_version(*facts: object, dags: Iterable[str]) -> PageVersion:
    """Return the version of a page.

    :param facts: all that it shows, as rows and values whose text is the same while they are equal
    :param dags: of its rows
    """
    return PageVersion(digest=hashlib.sha256(repr(facts).encode()).hexdigest(), dags=frozenset(dags))


@dataclass(frozen=True, kw_only=True)
class ExperimentEntry:
    """An experiment in a table."""

    view: ExperimentView
    labels: Labels
    #: From 0 to 1: trials that have ended, and parts of running ones, of the planned trials. None: unknown, because
    #: no trial has ended, and the configuration names no length that is comparable with reports.
    progress: float | None
    #: From the durations of its ended trials, or from the progress of running ones; None = no estimate.
    expected_end: datetime | None
    #: Why no set of the pool's hosts can serve its oldest request; None: a trial of it runs, or can run, or none waits.
    cannot_run: str | None


@dataclass(frozen=True, kw_only=True)
class ExperimentPlan:
    """DAG, plan and metric of an experiment, without its trials."""

    experiment_id: int
    dag_id: str
    #: None: it was not planned by a search.
    search_id: int | None
    #: Of the newest plan, else of the first trial; None without both.
    config_id: int | None
    metric: str | None
    smaller_is_better: bool


@dataclass(frozen=True, kw_only=True)
class TrialQuery:
    """One page of the trials of an experiment, or of all."""

    #: None = of all experiments.
    experiment_id: int | None = None
    dags: Dags = None
    #: Part of a hyperparameter's name or value, of a label, or the number or id; empty = all.
    text: str = ""
    #: Empty = all.
    states: Sequence[TrialState] = ()
    #: Trials that have all of these.
    tags: Sequence[str] = ()
    #: Filter expression; None = all.
    where: Expression | None = None
    #: True: also trials that a newer trial of their task, or a newer plan, has replaced.
    with_replaced: bool = False
    sort: TrialOrder = "number"
    #: Path of the hyperparameter that orders the trials, instead of ``sort``.
    hparam: Sequence[str] = ()
    descending: bool = False
    limit: int = 100
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class TrialEntry:
    """A trial in a table."""

    view: TrialView
    labels: Labels
    #: Units of training at its highest rung; without rungs its highest reported step.
    units: int | None
    #: Epoch of the latest validation of a trial without rungs; None: it reported none.
    epochs: float | None
    #: Time at which its ranks ran first.
    started_at: datetime | None
    #: Its gang while it waits or holds slots.
    task: TaskView | None
    #: None: it does not run, or the table has too many running trials.
    progress: TrialProgress | None
    #: Units of training at the rungs of its bracket.
    lengths: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class TrialHead:
    """State, DAG and the parts of the name of one trial."""

    trial_id: int
    number: int
    dag_id: str
    task_id: str
    map_index: int
    state: TrialState
    #: As JSON.
    hparams: str
    is_drawn: bool
    config_id: int
    #: None: its name follows from its hyperparameters.
    display_name: str | None


@dataclass(frozen=True)
class TrialColumns:
    """Figures of an experiment's trials, as columns of one length."""

    trial_ids: Sequence[int] = ()
    numbers: Sequence[int] = ()
    #: Names of states.
    states: Sequence[str] = ()
    #: Number of the sample, from 1. A trial has other hyperparameters only with another sample. 0: none yet.
    samples: Sequence[int] = ()
    metrics: Sequence[float | None] = ()


@dataclass(frozen=True, kw_only=True)
class TrialFigures:
    """Hyperparameters and metric of one trial."""

    trial_id: int
    number: int
    state: TrialState
    #: Empty until they are sampled.
    hparams: Mapping[str, Any]
    metric: float | None
    best_step: int | None
    #: Units of training at its highest rung.
    units: int | None
    restarts: int
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class RungStanding:
    """Report of a trial at a rung, with its standing when the decision was made."""

    trial_id: int
    trial_number: int
    #: Units of training at the report.
    units: int
    #: None: no finite number, or the trial failed.
    metric: float | None
    #: None: the trial failed.
    decision: Decision | None
    #: From 1, among ``of`` reports.
    place: int
    of: int
    #: The metric that the report had to beat; None: each report continued, or the rung is the last.
    cut_off: float | None
    #: By how much the metric passed the cut-off; negative: by how much it missed it.
    distance: float | None
    is_error: bool
    #: True: its trial was cleared, and it no longer counts.
    has_left: bool
    at: datetime


@dataclass(frozen=True, kw_only=True)
class RungState:
    """One rung of a bracket."""

    bracket: int
    rung: int
    #: Units of training at which trials report.
    units: int
    reported: int
    continued: int
    stopped: int
    #: The metric that the next report has to beat; None as in :class:`RungStanding`.
    cut_off: float | None
    #: Best first. A long rung is shown in part.
    entries: Sequence[RungStanding]


@dataclass(frozen=True, kw_only=True)
class TaskTrial:
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
class DagRunExperiment:
    """An experiment of a DAG run."""

    experiment_id: int
    name: str
    state: ExperimentState


@dataclass(frozen=True, kw_only=True)
class SlotDevice:
    """A slot with its device."""

    host: str
    slot: int
    #: UUID of its GPU; None: it is a CPU slot.
    device: str | None
    #: Of the GPU, and of its host; None: not known.
    memory_bytes: int | None
    host_memory_bytes: int | None
