"""What the store takes and gives: frozen values, one line of meaning per attribute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from airflow_provider_dtrain.core.checkpoint_place import CheckpointPlace
from airflow_provider_dtrain.core.resources import (
    AllocationState,
    HostState,
    PoolOptions,
    SlotType,
    TrialState,
)
from airflow_provider_dtrain.store.trial_fields import InSearch, Judged

#: ``stuck``: a process there cannot be killed; ``busy_elsewhere``: somebody outside this store holds it.
SlotState = Literal["ready", "stuck", "busy_elsewhere"]
AttemptState = Literal["waiting", "starting", "running", "stopping", "completed", "failed", "lost", "preempted"]
EndState = Literal["completed", "errored", "killed", "stopped"]
MetricGroup = Literal["training", "validation"]
OnUnplaceable = Literal["fail", "wait"]
#: Why a slot is free again; ``untaken``: no process was ever started under the grant.
Proof = Literal["clear", "reboot", "removed", "untaken"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that :meth:`Store.check` looked at."""

    name: str
    ok: bool
    #: What was found; when not ok, also what to do.
    message: str


@dataclass(frozen=True, kw_only=True)
class Template:
    """One version of a stored template."""

    name: str
    #: Grows by one with every change, removals included.
    version: int
    #: YAML as it was given; empty in the version that records a removal.
    text: str
    set_by: str
    set_at: datetime
    removed: bool = False


@dataclass(frozen=True, kw_only=True)
class Config:
    """An effective configuration; never changes once stored."""

    config_id: int
    #: sha256 of everything below.
    digest: str
    document: Mapping[str, Any]
    #: Dotted path -> ``template`` or ``config``.
    origins: Mapping[str, Any]
    template: str | None
    template_version: int | None
    #: Encrypted by the caller; opaque here.
    secrets: bytes | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A named set of hosts with one queue."""

    name: str
    slot_type: SlotType
    options: PoolOptions = field(default_factory=PoolOptions)
    #: Defaults of configurations that run here.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Raised by everything that may change a scheduling decision.
    version: int = 0


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
    #: Where other hosts reach it, when that differs from what the network check finds.
    address: str | None = None
    #: Interpreter that starts the supervisor.
    python: str = "python3"
    remote_dir: str = ".dtrain"
    state_dir: str | None = None
    #: Folder for the locks of all accounts of the machine; None: ``[dtrain] lock_dir``, else the supervisor's default.
    lock_dir: str | None = None
    host_key: str | None = None
    state: HostState = "ready"
    state_reason: str = ""
    #: Answer of the last probe.
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: With ``boot_id`` and ``pid_ns`` the identity of the running machine.
    machine_id: str | None = None
    boot_id: str | None = None
    pid_ns: str | None = None


@dataclass(frozen=True, kw_only=True)
class SlotView:
    """A slot and who holds it."""

    host: str
    index: int
    pool: str
    device: str | None
    device_name: str | None
    enabled: bool
    state: SlotState
    #: Why it is not ready: the processes that are left in it, or who holds it.
    note: str
    allocation_id: int | None
    #: The one that uses a held gang; None while nobody does.
    trial_id: int | None
    #: For a held gang: whose it is, in words.
    experiment: str | None
    held_since: datetime | None


@dataclass(frozen=True, kw_only=True)
class TrialKey:
    """The Airflow task instance behind a trial."""

    dag_id: str
    run_id: str
    task_id: str
    #: -1 when the task is not mapped.
    map_index: int = -1
    #: Grows when a person clears the task: then the trial begins anew.
    max_tries: int = 0


@dataclass(frozen=True, kw_only=True)
class TrialSubmission:
    """A trial and the gang that it asks for."""

    key: TrialKey
    experiment_name: str
    config_id: int
    pool: str
    #: Slots wanted, >= 0.
    slots: int
    #: sha256 of the stored user code; None: nothing travels.
    payload: str | None = None
    priority: int = 42
    is_single_host: bool = False
    #: Number of the trial in its experiment.
    number: int = 0
    #: None: drawn when the trial starts.
    hparams: Mapping[str, Any] | None = field(default_factory=dict)
    seed: int = 0
    max_restarts: int = 5
    on_unplaceable: OnUnplaceable = "fail"
    #: Share of its experiment beside others; counts when the experiment is made.
    weight: float = 1.0
    #: Most slots that all gangs of its experiment hold at one time; None = no cap. As ``weight``.
    max_slots: int | None = None
    #: Seconds after which its runs are ended; None = they may run for ever.
    max_runtime_s: float | None = None
    #: Whether it can be interrupted; None = as soon as it has written a checkpoint.
    preemptible: bool | None = None
    #: A held gang that it uses instead of asking for one.
    allocation_id: int | None = None
    #: The search that planned it, and its place there.
    search_id: int | None = None
    bracket: int = 0


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """The rows that a submission stands for; the attempt is the trial's latest."""

    experiment_id: int
    trial_id: int
    attempt_id: int
    attempt_number: int
    allocation_id: int
    #: False: they were there before.
    is_new: bool = field(default=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class AttemptView(InSearch):
    """One launch of a trial's ranks, with everything needed to carry it on."""

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
    state: AttemptState
    #: Name on the hosts; None before the gang is granted.
    run: str | None
    token: int | None
    watch: int
    watcher: str | None
    #: When the lease was last renewed.
    renewed_at: datetime | None
    allocation_id: int
    allocation_state: AllocationState
    pool: str
    priority: int
    slots: int
    #: Host -> slot indices of the current grant, released or not; no indices for a gang of 0 slots.
    placement: Mapping[str, tuple[int, ...]]
    #: Hosts of the current grant that are not released.
    held_hosts: tuple[str, ...]
    #: Why it waits or stopped, in words.
    reason: str
    #: True: no set of the pool's hosts can serve it, and it asked to fail then.
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
    #: When it may start, in words; and as a time, where one is known.
    expected: str = ""
    expected_at: datetime | None = None
    #: True: a person wants its request to wait.
    paused: bool = False
    #: For whom its gang has to go, in words; None = it may stay.
    preempted_for: str | None = None
    #: Seconds after which the run is ended; None = it may run for ever.
    max_runtime_s: float | None = None
    #: True: its gang is held for several tasks and outlives it.
    is_held_gang: bool = False
    #: When whoever follows it was last heard of; None once it has ended.
    heard_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class OpenLog:
    """Log of rank 0 of an ended attempt that the task log may not have to its end."""

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
    #: True when the supervisor ended it.
    sent_signal: bool
    #: Last bytes of its log, at most 64 KiB, undecodable bytes replaced.
    log_tail: str


@dataclass(frozen=True, kw_only=True)
class EventView:
    """One event as a host sent it."""

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
    """A gang that waits or runs; of a held gang the attempt that uses it, None while nobody does."""

    allocation_id: int
    attempt_id: int | None
    attempt_number: int | None
    trial_id: int | None
    trial_number: int | None
    experiment_id: int | None
    #: For a held gang: whose it is, in words.
    experiment: str
    #: The task that asked for the gang.
    key: TrialKey
    pool: str
    priority: int
    slots: int
    placement: Mapping[str, tuple[int, ...]]
    state: AllocationState
    reason: str
    position: int | None
    #: Submission while it waits, grant afterwards.
    since: datetime
    #: When it may start, in words.
    expected: str = ""
    #: True: a person wants it to wait.
    paused: bool = False
    #: When whoever waits for it or follows it was last heard of; None: nobody has to, as for a held gang between tasks.
    heard_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class TrialView(Judged):
    """A trial."""

    trial_id: int
    number: int
    experiment_id: int
    experiment: str
    key: TrialKey
    state: TrialState
    config_id: int
    hparams: Mapping[str, Any]
    seed: int
    restarts: int
    max_restarts: int
    #: Number of attempts so far; the latest one's id.
    attempts: int
    attempt_id: int
    #: Who asked to kill it.
    kill_requested_by: str | None
    failure: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One report of a trial."""

    step: int
    group: MetricGroup
    #: NaN and infinities come back as such.
    metrics: Mapping[str, Any]
    epoch: float | None
    at: datetime
    #: Number of the attempt that reported.
    attempt: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """One checkpoint of a trial."""

    checkpoint_id: int
    trial_id: int
    attempt: int
    #: Name of the run that wrote it; its folder on the host.
    run: str
    host: str
    step: int
    #: Relative to the run folder, or absolute on shared storage.
    path: str
    size_bytes: int | None
    sha256: str | None
    metrics: Mapping[str, Any]
    at: datetime
    #: Where a copy lies, if one was made.
    copy_url: str | None
    #: When the original was removed; None = it is still there.
    removed_at: datetime | None = None
    #: The only location that may be acted on: derived from the configuration. None = refused.
    place: CheckpointPlace | None = None
    #: Why the reported path is refused; None = it is one of the trial's places.
    refused: str | None = None
