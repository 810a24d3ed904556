"""The queue page."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.core.lifecycle.states import AllocationState
from airflow_provider_dtrain.resources.tasks import TaskRef
from airflow_provider_dtrain.store.records.pages import QueueClass


class QueuePool(Model):
    """Counts of one pool."""

    name: str
    slots: int
    free: int
    waiting: int
    running: int


class QueueRow(Model):
    """One gang that waits or holds slots."""

    allocation_id: int
    kind: Literal["trial", "held_gang"]
    #: The trial; of a held gang the trial that uses it now.
    trial_id: int | None
    trial_name: str | None
    attempt: int | None
    experiment_id: int | None
    #: Name of the experiment; of a held gang: its task, in words.
    experiment: str
    task: TaskRef
    pool: str
    queue_class: QueueClass
    #: Place among the waiting gangs of the pool, from 1; None: it holds slots, or its follower is gone.
    position: int | None
    priority: int
    slots: int
    #: Host -> indices of its slots.
    placement: dict[str, list[int]]
    state: AllocationState
    #: Reason for the state, in words.
    reason: str | None
    #: Time of the submission while it waits, of the grant afterwards.
    since: datetime
    #: Expected start, in words.
    expected: str | None
    expected_at: datetime | None
    paused: bool
    #: Last sign of life of a follower that is gone; None: it is alive, on its way to the triggerer, or not needed.
    silent_since: datetime | None
    may_edit: bool


class Queue(Model):
    """Pools, and one page of their gangs."""

    pools: list[QueuePool]
    rows: list[QueueRow]
    total: int


class Priority(Model):
    """Body of a change of priority."""

    #: 1 is first, 99 is last.
    priority: int = Field(ge=1, le=99)


class Share(Model):
    """Body of a change of an experiment's share of the queue. None leaves a value as it is."""

    #: Relative to other experiments; 1 is usual.
    weight: float | None = Field(default=None, gt=0, le=1_000_000)
    #: Most slots that its gangs hold together; 0: no cap.
    max_slots: int | None = Field(default=None, ge=0, le=2**31 - 1)


class GangAction(Model):
    """Outcome of an action on a held gang."""

    message: str
    allocation_id: int
