"""Arguments and results for gangs that are held for several tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dtrain.core.lifecycle.states import ACTIVE, AllocationState
from airflow_provider_dtrain.store.records.trials import OnUnplaceable, TrialKey


@dataclass(frozen=True, kw_only=True)
class GangSubmission:
    """A gang that one task requests and later tasks use."""

    #: The task that requests it.
    key: TrialKey
    pool: str
    #: Slots requested, >= 0.
    slots: int
    priority: int = 42
    is_single_host: bool = False
    #: Seconds that it is held after the last task that used it, > 0.
    hold_for_s: float = 900.0
    on_unplaceable: OnUnplaceable = "fail"


@dataclass(frozen=True, kw_only=True)
class GangView:
    """A held gang, or the request for one."""

    allocation_id: int
    #: The task that requested it.
    key: TrialKey
    state: AllocationState
    #: None before it is granted.
    token: int | None
    watch: int
    watcher: str | None
    pool: str
    #: Who gives out its slots, see :attr:`.Pool.backend`.
    backend: str
    priority: int
    slots: int
    is_single_host: bool
    #: Host -> slot indices of the grant, released or not.
    placement: Mapping[str, tuple[int, ...]]
    #: Hosts that are not released.
    held_hosts: tuple[str, ...]
    #: Reason why it waits, in words.
    reason: str
    #: True: no set of the pool's hosts can serve it, and the submission says to fail then.
    unplaceable: bool
    hold_for_s: float
    #: Time at which it ends unless an attempt uses it; None before it is taken up.
    held_until: datetime | None
    #: Reason why it has ended, in words; None = it has not ended.
    ended_because: str | None
    #: The attempt that uses it, or whose end not every host has confirmed.
    attempt_id: int | None
    submitted_at: datetime

    @property
    def is_usable(self) -> bool:
        """True when a task may use it now."""
        return self.ended_because is None and self.state in ACTIVE
