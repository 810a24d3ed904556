"""Gangs of slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_provider_dtrain.core.lifecycle.states import AllocationState
from airflow_provider_dtrain.resources.jobs import SchedulerJob
from airflow_provider_dtrain.resources.pools import PoolCounts
from airflow_provider_dtrain.resources.tasks import TaskRef

#: Class of a gang in the queue, best class first.
QueueClass = Literal["protected", "fresh", "young", "overdue", "old"]


@dataclass(frozen=True, kw_only=True)
class GangSummary:
    """A gang that waits or holds slots."""

    allocation_id: int
    kind: Literal["trial", "held_gang"]
    #: The trial; of a held gang the trial that uses it now.
    trial_id: int | None
    trial_name: str | None
    #: Number of the attempt that waits for it or uses it.
    attempt: int | None
    experiment_id: int | None
    #: Name of the experiment; of a held gang: its task, in words.
    experiment: str
    #: The task that requested it.
    task: TaskRef
    pool: str
    #: None: an external scheduler gives out the slots of its pool.
    queue_class: QueueClass | None
    #: Place among the waiting gangs of the pool, from 1; None: it holds slots, its follower is gone, or an external
    #: scheduler decides.
    position: int | None
    priority: int
    slots: int
    #: Host -> indices of its slots.
    placement: Mapping[str, list[int]]
    state: AllocationState
    #: The state with the place in the queue, or the fact that the follower is gone.
    state_text: str
    #: Reason for the state, in words.
    reason: str | None
    #: Time of the submission while it waits, of the grant afterwards.
    since: datetime
    #: Expected start, in words.
    expected: str | None
    expected_at: datetime | None
    #: A user has paused it.
    is_paused: bool
    #: It waits, and no set of the pool's hosts can serve it as they are now.
    never_fits: bool
    #: Last sign of life of a follower that is gone; None: it is there, on its way to the triggerer, or not needed.
    unfollowed_since: datetime | None
    #: The job that holds its slots or waits for them; None: the queue gives them out, or no job was made yet.
    job: SchedulerJob | None
    may_edit: bool


@dataclass(frozen=True, kw_only=True)
class GangPage:
    """Pools, and one page of their gangs."""

    pools: list[PoolCounts]
    rows: list[GangSummary]
    total: int
