"""The queue page."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

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


class GangAction(Model):
    """Outcome of an action on a held gang."""

    message: str
    allocation_id: int
