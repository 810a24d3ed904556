"""Arguments and results of the store: frozen values, each attribute with its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal

from airflow_provider_dtrain.core.checkpoint_location import CheckpointPlace
from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.external_jobs import OWN_BACKEND
from airflow_provider_dtrain.core.host_rates import HostCheckRule
from airflow_provider_dtrain.core.launch.containers import ContainerRules
from airflow_provider_dtrain.core.lifecycle.states import AllocationState, AttemptState, HostState, TrialState
from airflow_provider_dtrain.core.projects import DEFAULT_PROJECT
from airflow_provider_dtrain.core.scheduler_facts import SchedulerFacts
from airflow_provider_dtrain.core.scheduling.model import PoolOptions, SlotType
from airflow_provider_dtrain.resources.hosts import SlotState
from airflow_provider_dtrain.store.records.search_fields import InSearch, Judged

EndState = Literal["completed", "errored", "killed", "stopped"]
OnUnplaceable = Literal["fail", "wait"]
#: Reason why a slot is free again; ``untaken``: no process was ever started under the grant.
#: ``job``: the external job that held the slot has ended.
Proof = Literal["clear", "reboot", "removed", "untaken", "job"]
#: Watcher of an attempt or a gang that a worker has handed to the triggerer.
HANDED_OVER: Final = "handed over"
#: Most other stores of a host that are shown, and most characters of each. A host chooses both.
_MOST_STORES, _MOST_CHARS = 4096, 500


@dataclass(frozen=True, kw_only=True)
class StoreCheck:
    """Result of one check of :meth:`Store.check`."""

    name: str
    ok: bool
    #: The finding; when not ok, also the remedy.
    message: str


@dataclass(frozen=True, kw_only=True)
class Config:
    """An effective configuration, immutable once stored. Two with the same digest are equal."""

    config_id: int = field(compare=False)
    #: sha256 of document, origins, template and secrets.
    digest: str
    document: Mapping[str, Any] = field(compare=False)
    #: Dotted path -> ``template`` or ``config``.
    origins: Mapping[str, Any] = field(compare=False)
    template: str | None = field(compare=False)
    template_version: int | None = field(compare=False)
    #: Encrypted by the caller; opaque here.
    secrets: bytes | None = field(compare=False)
    created_at: datetime = field(compare=False)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A named set of hosts with one queue."""

    name: str
    slot_type: SlotType
    options: PoolOptions = field(default_factory=PoolOptions)
    #: Who gives out its slots: :data:`OWN_BACKEND`, or an external scheduler with the options ``scheduler``.
    backend: str = OWN_BACKEND
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    #: Of the external scheduler as last requested; None: never yet, or the options have changed since.
    facts: SchedulerFacts | None = None
    #: Time at which the external scheduler was last asked for the states of the pool's jobs; None: never yet.
    polled_at: datetime | None = None
    #: Defaults for configurations of trials in this pool.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    containers: ContainerRules = ContainerRules()
    #: Check of a gang's hosts before its launch, and seconds for which an earlier check of a host suffices.
    host_check: HostCheckRule = HostCheckRule.OFF
    host_check_every_s: float = 86_400.0
    #: Raised by every change that may affect a scheduling decision.
    version: int = 0

    @property
    def is_external(self) -> bool:
        """True when an external scheduler gives out its slots."""
        return self.backend != OWN_BACKEND


@dataclass(frozen=True, kw_only=True)
class SlotRecord:
    """One accelerator, or one CPU slot."""

    index: int
    #: UUID of the GPU; None for a CPU slot.
    device: str | None = None
    device_name: str | None = None
    memory_bytes: int | None = None
    enabled: bool = True
    state: SlotState = "ready"


@dataclass(frozen=True, kw_only=True)
class HostRecord:
    """A registered machine."""

    name: str
    pool: str
    slot_type: SlotType
    slots: tuple[SlotRecord, ...]
    #: Airflow connection of type ``ssh``; None for this machine.
    conn_id: str | None = None
    #: Address under which other hosts reach it, when that differs from the one that the network check finds.
    address: str | None = None
    #: Interpreter that starts the supervisor.
    python: str = "python3"
    remote_dir: str = ".dtrain"
    state_dir: str | None = None
    #: Folder for the locks of all accounts of the machine; None: ``[dtrain] lock_dir``, else the supervisor's default.
    lock_dir: str | None = None
    host_key: str | None = None
    #: The job of an external scheduler that it is a node of, and the node's number there, from 0.
    external_job_id: int | None = None
    node: int | None = None
    #: Environment of its ranks, before that of the configuration.
    variables: Mapping[str, str] | None = None
    state: HostState = HostState.READY
    state_reason: str = ""
    #: Sentences of host checks that name it, one per line.
    findings: str = ""
    #: Time at which no gang may be left on a draining host; None: its gangs may finish.
    drain_by: datetime | None = None
    #: Whether gangs that cannot resume from a checkpoint are ended at that time.
    drain_kills: bool = False
    #: Result of the last probe.
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: Together with ``boot_id`` and ``pid_ns``: the identity of the running machine.
    machine_id: str | None = None
    boot_id: str | None = None
    pid_ns: str | None = None

    @property
    def is_node(self) -> bool:
        """True for a node of a job, which is registered and removed with the job."""
        return self.external_job_id is not None

    def other_stores(self, own: str) -> list[str]:
        """Return the ids of the other stores that have used the host, according to its last probe.

        :param own: id of this store
        """
        stores = self.facts.get("stores")
        ids = sorted(str(store) for store in stores if store != own) if isinstance(stores, Mapping) else []
        return [escaped(store)[:_MOST_CHARS] for store in ids[:_MOST_STORES]]


@dataclass(frozen=True, kw_only=True)
class HeldForCheck:
    """Slots of a host that a check holds."""

    host: str
    allocation_id: int
    token: int
    #: Slot index -> UUID of its GPU; None for a CPU slot.
    devices: Mapping[int, str | None]


@dataclass(frozen=True, kw_only=True)
class SlotView:
    """A slot and its holder."""

    host: str
    index: int
    pool: str
    device: str | None
    device_name: str | None
    enabled: bool
    state: SlotState
    #: Reason why it is not ready: the processes that are left in it, or its holder.
    note: str
    allocation_id: int | None
    #: Of a held gang: the trial that uses it; None while none does.
    trial_id: int | None
    #: Of a held gang: the task that it belongs to, in words.
    experiment: str | None
    held_since: datetime | None
    #: DAG of the holder.
    dag_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrialKey:
    """The Airflow task instance behind a trial."""

    dag_id: str
    run_id: str
    task_id: str
    #: -1 when the task is not mapped.
    map_index: int = -1
    #: Grows when a user clears the task; the trial then starts from scratch.
    max_tries: int = 0


class HandOver(Enum):
    """Rule by which a worker leaves a trial that it submits to a triggerer at once."""

    NO = "no"
    #: The worker keeps the trial that is submitted first among those of a mapped task with the same tries.
    ALL_BUT_FIRST = "all but the first"
    YES = "yes"


@dataclass(frozen=True, kw_only=True)
class TrialSubmission:
    """A trial and the gang that it requests."""

    key: TrialKey
    experiment_name: str
    config_id: int
    pool: str
    #: Slots requested, >= 0.
    slots: int
    #: sha256 of the stored user code; None: no code is sent.
    payload: str | None = None
    #: State of the code in git, and Airflow's bundle: ``git`` and ``bundle``.
    source: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 42
    is_single_host: bool = False
    #: Number of the trial in its experiment.
    number: int = 0
    #: None: sampled when the trial starts.
    hparams: Mapping[str, Any] | None = field(default_factory=dict)
    seed: int = 0
    max_restarts: int = 5
    on_unplaceable: OnUnplaceable = "fail"
    #: Share of its experiment relative to other experiments; read only when the experiment is created.
    weight: float = 1.0
    #: Most slots that all gangs of its experiment hold at one time; None = no cap. Read like ``weight``.
    max_slots: int | None = None
    #: Owner and project of its experiment. Read like ``weight``.
    owner: str = ""
    project: str = DEFAULT_PROJECT
    #: Seconds after which its runs are ended; None = no limit.
    max_runtime_s: float | None = None
    #: Whether it can be preempted; None = as soon as it has written a checkpoint.
    preemptible: bool | None = None
    #: A held gang that it uses instead of requesting one.
    allocation_id: int | None = None
    #: The search that planned it, and its bracket there.
    search_id: int | None = None
    bracket: int = 0
    #: Whether the submitting worker leaves the trial to a triggerer at once.
    hand_over: HandOver = HandOver.NO
    #: Index among the trials of its task instance, from 0.
    trial_index: int = 0
    #: When its task is cleared, the trial is submitted again only if it has no result.
    keeps_result: bool = False


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """The rows of a submission, with the trial's latest attempt."""

    experiment_id: int
    trial_id: int
    attempt_id: int
    attempt_number: int
    allocation_id: int
    #: False: the rows existed before.
    is_new: bool = field(default=False, compare=False)
    #: True: new rows, which the submitting worker leaves to a triggerer.
    is_handed_over: bool = field(default=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class AttemptView(InSearch):
    """One launch of a trial's ranks, with all state that a follower needs to continue it."""

    attempt_id: int
    #: From 1 within the trial.
    number: int
    trial_id: int
    #: From 0 within the experiment.
    trial_number: int
    trial_state: TrialState
    experiment_id: int
    experiment: str
    key: TrialKey
    #: Index of the trial among those of its task instance, from 0.
    trial_index: int
    state: AttemptState
    #: Name on the hosts; None before the gang is granted, and if no host ever accepted the launch.
    run: str | None
    token: int | None
    watch: int
    watcher: str | None
    #: When the lease was last renewed.
    renewed_at: datetime | None
    allocation_id: int
    allocation_state: AllocationState
    #: When its request for slots was last renewed.
    asked_at: datetime
    pool: str
    #: Who gives out its slots, see :attr:`Pool.backend`.
    backend: str
    priority: int
    slots: int
    #: Host -> slot indices of the current grant, released or not; no indices for a gang of 0 slots.
    placement: Mapping[str, tuple[int, ...]]
    #: Hosts of the current grant that are not released.
    held_hosts: tuple[str, ...]
    #: Reason why it waits or stopped, in words.
    reason: str
    #: True: no set of the pool's hosts can serve it, and the submission says to fail then.
    unplaceable: bool
    #: From 1 among the waiting requests of the pool; None when it does not wait.
    position: int | None
    config_id: int
    payload: str | None
    hparams: Mapping[str, Any]
    seed: int
    plan: Mapping[str, Any] | None
    master: Any
    #: Counted restarts of the trial so far.
    restarts: int
    max_restarts: int
    created_at: datetime
    granted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    failure: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    #: Expected start in words, and as a time where one is known.
    expected: str = ""
    expected_at: datetime | None = None
    #: True: a user has paused its request.
    paused: bool = False
    #: The trial or gang that preempts it, in words; None = it is not preempted.
    preempted_for: str | None = None
    #: Seconds after which the run is ended; None = no limit.
    max_runtime_s: float | None = None
    #: Measured seconds of a checkpoint and a restart; None: not measured.
    cost_s: float | None = None
    #: True: its gang is held for several tasks and outlives it.
    is_held_gang: bool = False
    #: Time of the last sign of life of its follower; None once it has ended.
    seen_at: datetime | None = None

    @property
    def is_external(self) -> bool:
        """True when an external scheduler gives out its slots."""
        return self.backend != OWN_BACKEND

    @property
    def is_handed_over(self) -> bool:
        """True if a worker has handed it over, and no triggerer has taken it yet."""
        return self.watcher == HANDED_OVER

    @property
    def label(self) -> str:
        """Name of the attempt in messages. A run's name means something on hosts only."""
        return f"trial {self.trial_id}, attempt {self.number}"


@dataclass(frozen=True, kw_only=True)
class OpenLog:
    """Log of rank 0 of an ended attempt that the task log may not contain completely."""

    attempt_id: int
    #: Of rank 0.
    host: str
    #: First byte that the task log may miss.
    position: int


@dataclass(frozen=True, kw_only=True)
class RankView:
    """One process of a gang."""

    rank: int
    host: str
    local_rank: int
    #: -1 for the rank of a gang of 0 slots.
    slot: int
    pid: int | None
    #: Negative for a signal; None while it runs.
    exit_code: int | None
    exited_at: datetime | None
    #: ``{message, traceback}`` of the training code.
    error: Mapping[str, Any] | None
    #: Versions of its libraries, as it reported them.
    runtime: Mapping[str, Any] | None
    #: True when the supervisor ended it with a signal.
    sent_signal: bool
    #: Last bytes of its log, at most 64 KiB, undecodable bytes replaced.
    log_tail: str


@dataclass(frozen=True, kw_only=True)
class LogTail:
    """The end of a rank's log in the store."""

    rank: int
    host: str
    #: Offset behind its last byte; None: not known.
    end: int | None
    #: At most 64 KiB.
    content: bytes


@dataclass(frozen=True, kw_only=True)
class EventView:
    """One event, as its host sent it."""

    host: str
    stream: str
    seq: int | None
    #: By the clock of the host.
    at: datetime
    kind: str
    #: The whole event.
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """A gang that waits or runs.

    For a held gang the fields of attempt and trial are those of the attempt that uses it, None while none does.
    """

    allocation_id: int
    attempt_id: int | None
    attempt_number: int | None
    trial_id: int | None
    trial_number: int | None
    experiment_id: int | None
    #: Of a held gang: the task that it belongs to, in words.
    experiment: str
    #: The task that requested the gang.
    key: TrialKey
    pool: str
    priority: int
    slots: int
    placement: Mapping[str, tuple[int, ...]]
    state: AllocationState
    reason: str
    position: int | None
    #: Time of the submission while it waits, of the grant afterwards.
    since: datetime
    #: Who gives out its slots, see :attr:`Pool.backend`.
    backend: str = OWN_BACKEND
    #: Expected start, in words.
    expected: str = ""
    #: True: a user has paused it.
    paused: bool = False
    #: Time of the last sign of life of its waiter or follower; None: it needs neither, as a held gang between tasks.
    seen_at: datetime | None = None
    #: True: a worker has handed it over, and no triggerer has taken it yet.
    is_handed_over: bool = False
    #: True: it waits, and no set of the pool's hosts can serve it, as of the last pass.
    never_fits: bool = False

    @property
    def is_external(self) -> bool:
        """True when an external scheduler gives out its slots."""
        return self.backend != OWN_BACKEND


@dataclass(frozen=True, kw_only=True)
class TrialView(Judged):
    """A trial."""

    trial_id: int
    number: int
    experiment_id: int
    experiment: str
    #: Those of its experiment.
    owner: str
    project: str
    archived: bool
    key: TrialKey
    state: TrialState
    config_id: int
    hparams: Mapping[str, Any]
    seed: int
    restarts: int
    max_restarts: int
    #: Number of attempts so far, and id of the latest one.
    attempts: int
    attempt_id: int
    #: The user who requested the kill.
    kill_requested_by: str | None
    failure: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """One checkpoint of a trial."""

    checkpoint_id: int
    trial_id: int
    attempt: int
    #: Name of the run that wrote it, which is also its folder on the host.
    run: str
    host: str
    step: int
    #: Relative to the run folder, or absolute on shared storage.
    path: str
    size_bytes: int | None
    sha256: str | None
    metrics: Mapping[str, Any]
    at: datetime
    #: Location of its copy, if there is one.
    copy_url: str | None
    #: Time at which the original was removed; None = it still exists.
    removed_at: datetime | None = None
    #: The only location that code may act on, derived from the configuration. None = refused.
    place: CheckpointPlace | None = None
    #: Reason why the reported path is refused; None = the path is one of the trial's places.
    refused: str | None = None
