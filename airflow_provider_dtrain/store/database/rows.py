"""Types of the rows that functions of the store pass to each other, and records made from rows.

Each attribute of a row is a column of the table, None where the column may be NULL. JSON columns are ``Any``.
"""

from __future__ import annotations

from dataclasses import Field, fields
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Row

from airflow_provider_dtrain.core.lifecycle.states import (
    AllocationState,
    AttemptState,
    ExperimentState,
    HostState,
    TrialState,
)
from airflow_provider_dtrain.core.scheduling.model import SlotType
from airflow_provider_dtrain.store.database.statements import Values


class _Record(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


T = TypeVar("T", bound=_Record)


def record_of(kind: type[T], row: Row[Any], **more: Any) -> T:
    """Return the record of a row: each field is the column of its name.

    :param more: fields that are not a column of the row, or not as they are in it
    :raises KeyError: the row has no column for a field
    """
    columns = row._mapping
    return kind(**{name: columns[name] for name in _names(kind) if name not in more}, **more)


@cache
def _names(kind: type[T]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.init)


def columns_of(record: _Record, table: sa.Table) -> Values:
    """Return the fields of a record that are columns of a table, by name."""
    return {name: value for name, value in vars(record).items() if name in table.c}


class TaskKeyRow(Protocol):
    """A row with the columns of a task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    max_tries: int


class CounterRow(Protocol):
    """A row of ``allocations`` with the columns that count the seconds of its request."""

    granted_at: datetime | None
    renewed_at: datetime
    held_s: float
    waited_s: float
    eligible_since: datetime | None


class PassVersionRow(Protocol):
    """A row of ``pools`` with the columns that say whether a pass is due."""

    backend: str
    version: int
    passed_version: int
    next_due_at: datetime | None


class HostRow(Protocol):
    """A row of ``hosts`` with the columns that its slots depend on."""

    name: str
    pool: str
    slot_type: SlotType
    slot_count: int
    conn_id: str | None
    external_job_id: int | None
    state: HostState
    boot_id: str | None


class SlotRow(Protocol):
    """A row of ``slots``."""

    host: str
    slot: int
    device: str | None
    device_name: str | None
    memory_bytes: int | None
    enabled: bool
    state: Literal["ready", "stuck", "busy_elsewhere"]


class AllocationSlotRow(Protocol):
    """A row of ``allocation_slots``."""

    allocation_id: int
    token: int
    host: str
    slot: int
    released_at: datetime | None


class SearchRow(TaskKeyRow, Protocol):
    """A row of ``searches`` with the columns that its next generation depends on."""

    generation: int
    seed: int


class PoolRow(Protocol):
    """A row of ``pools``."""

    name: str
    slot_type: SlotType
    fit: str
    allow_heterogeneous: bool
    reservations: int
    preemption: str
    max_wait_s: float
    protected_share: float
    fresh_s: float
    young_s: float
    min_run_s: float
    defaults: Any
    containers: Any
    host_check: str
    host_check_every_s: float
    backend: str
    scheduler: Any
    scheduler_facts: Any
    polled_at: datetime | None
    polling_until: datetime | None
    poll_every_s: float
    version: int
    passed_version: int
    next_due_at: datetime | None
    waiting: int


class ExperimentRow(Protocol):
    """A row of ``experiments``."""

    id: int
    dag_id: str
    run_id: str
    name: str
    state: ExperimentState
    weight: float
    max_slots: int | None
    control_request: str | None
    requested_by: str | None
    owner: str
    project: str
    archived: bool
    delete_requested_at: datetime | None
    delete_requested_by: str | None
    created_at: datetime
    ended_at: datetime | None


class TrialRow(Protocol):
    """A row of ``trials``."""

    id: int
    experiment_id: int
    number: int
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    max_tries: int
    trial_index: int
    config_id: int
    payload: str | None
    source: Any
    hparams: Any
    seed: int
    state: TrialState
    restarts: int
    max_restarts: int
    excluded: Any
    kill_requested_at: datetime | None
    kill_requested_by: str | None
    pause_requested_at: datetime | None
    pause_requested_by: str | None
    stop_requested_at: datetime | None
    stop_requested_by: str | None
    search_id: int | None
    bracket: int
    draw: int
    is_drawn: bool
    best_metric: float | None
    best_step: int | None
    cleared_at: datetime | None
    failure: Any
    result: Any
    created_at: datetime
    ended_at: datetime | None


class AttemptRow(Protocol):
    """A row of ``attempts`` without its launch plan, which is large and read by few."""

    id: int
    trial_id: int
    number: int
    allocation_id: int
    state: AttemptState
    watch: int
    watcher: str | None
    renewed_at: datetime | None
    reason: str
    failure: Any
    result: Any
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    log_closed: bool


class RequestRow(CounterRow, Protocol):
    """A row of ``allocations`` with the columns that a scheduling pass reads."""

    id: int
    trial_id: int | None
    slots: int
    priority: int
    is_single_host: bool
    on_unplaceable: str
    state: AllocationState
    sequence: int
    reason: str
    reason_since_s: float | None
    reason_entries: int
    unplaceable: bool
    never_fits: bool
    position: int | None
    paused: bool
    max_runtime_s: float | None
    claim: Any
    reserved_hosts: Any
    expected_at: datetime | None
    expected: str
    preemptible: bool | None
    has_checkpoint: bool
    cost_s: float | None
    preempted_at: datetime | None


class AllocationRow(RequestRow, Protocol):
    """A row of ``allocations``."""

    pool: str
    backend: str
    token: int | None
    submitted_at: datetime
    requested_at: datetime
    ended_at: datetime | None
    preempted_for: int | None
    recovering_until: datetime | None
    recoverer: str | None


class GangRow(Protocol):
    """A row of ``gangs``."""

    allocation_id: int
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    max_tries: int
    hold_for_s: float
    held_until: datetime | None
    watch: int
    watcher: str | None
    ended_because: str | None
    attempt_id: int | None
    unclear: Any
