"""What the queue tells those who wait or follow: frozen values, one line of meaning per attribute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What others want from whoever follows an attempt; None = nothing."""

    #: Who asked to kill the trial.
    kill_by: str | None = None
    #: Who asked to pause it.
    pause_by: str | None = None
    #: Who asked to stop it with the best that it has.
    stop_by: str | None = None
    #: For whom the gang has to go, in words.
    preempted_for: str | None = None
    #: Why the held gang that it uses has ended, in words.
    gang_ended: str | None = None


@dataclass(frozen=True, kw_only=True)
class PassResult:
    """What one scheduling pass did."""

    #: Ids of the allocations granted by it.
    granted: tuple[int, ...]
    #: Requests of the pool that still wait.
    waiting: int
    #: Ids of the allocations that it told to go.
    preempted: tuple[int, ...] = ()
