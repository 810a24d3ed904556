"""Results of the queue for waiters and followers: frozen values, each attribute with its meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_dtrain.core.lifecycle.states import AllocationState
from airflow_provider_dtrain.core.scheduling.evacuation import Drain, Resumption, ask_at, due

#: States of a gang whose ranks end already.
_ENDS = frozenset({AllocationState.STOPPING, AllocationState.EXPIRED})


@dataclass(frozen=True, kw_only=True)
class Evacuation:
    """Deadlines of the hosts on which a gang holds slots, and the facts about the gang."""

    drains: tuple[Drain, ...] = ()
    gang: Resumption = field(default_factory=Resumption)

    def due(self, now: datetime) -> Drain | None:
        """Return the host that the gang must leave now, None when it may stay."""
        return due(self.drains, self.gang, now)


@dataclass(frozen=True, kw_only=True)
class GangOnHost:
    """A gang that holds slots on a host, with the facts for an evacuation."""

    allocation_id: int
    state: AllocationState
    #: None: a held gang that no trial uses now.
    trial_id: int | None
    dag_id: str
    #: Empty for a held gang that no trial uses now.
    experiment: str
    #: The task that holds it for several tasks, in words; None: it is of one trial.
    held_for: str | None
    granted_at: datetime | None
    max_runtime_s: float | None
    gang: Resumption

    def asked_at(self, drain: Drain) -> datetime | None:
        """Return when it is asked to give way, None when it stays until it ends."""
        return None if self.held_for is not None else ask_at(drain, self.gang)

    def asked_for(self, drain: Drain, now: datetime) -> bool:
        """Return whether it is due to give way now."""
        return self.held_for is None and due([drain], self.gang, now) is not None

    @property
    def ends_at(self) -> datetime | None:
        """Latest end by ``max_runtime``, None without that limit."""
        if self.granted_at is None or self.max_runtime_s is None:
            return None
        return self.granted_at + timedelta(seconds=self.max_runtime_s)

    @property
    def is_ending(self) -> bool:
        """True if its ranks end already, for any reason."""
        return self.held_for is None and self.state in _ENDS


@dataclass(frozen=True, kw_only=True)
class PendingControlRequests:
    """Control requests to the follower of an attempt. None means no request."""

    #: The user who requested a kill of the trial.
    kill_by: str | None = None
    #: The user who requested a pause.
    pause_by: str | None = None
    #: The user who requested a stop with the best result so far.
    stop_by: str | None = None
    #: The trial or gang that preempts this one, in words.
    preempted_for: str | None = None
    #: Why an external scheduler wants the slots back, in words.
    asked_back: str | None = None
    #: Reason why the held gang that it uses has ended, in words.
    gang_ended: str | None = None
    #: Hosts of its gang that are to be empty by a deadline.
    evacuation: Evacuation = field(default_factory=Evacuation)


@dataclass(frozen=True, kw_only=True)
class PassResult:
    """Result of one scheduling pass."""

    #: Ids of the allocations that it granted.
    granted: tuple[int, ...]
    #: Requests of the pool that still wait.
    waiting: int
    #: Ids of the allocations that it preempted.
    preempted: tuple[int, ...] = ()
    #: Seconds for which each granted request was eligible and held no slots, in the order of ``granted``.
    waited_s: tuple[float, ...] = ()
