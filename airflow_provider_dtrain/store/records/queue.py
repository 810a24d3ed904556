"""Results of the queue for waiters and followers: frozen values, each attribute with its meaning."""

from __future__ import annotations

from dataclasses import dataclass


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
