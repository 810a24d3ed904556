"""Evacuation: when a gang on a draining host is asked to save, give way and resume on other hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

#: Shortest margin before the deadline of a gang whose stop was measured, and the factor on what it took.
LEAST_MARGIN_S, MARGIN_FACTOR = 60.0, 2.0


@dataclass(frozen=True, kw_only=True)
class Drain:
    """A host that no gang may use after a deadline."""

    host: str
    #: A time that has passed means at once.
    by: datetime
    #: Gangs that cannot resume from a checkpoint are ended at the deadline.
    kills: bool = False
    #: As the user gave it.
    reason: str = ""

    @property
    def cause(self) -> str:
        """Reason for which a gang gives way, as text."""
        return f"evacuated from {self.host}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """Facts about a gang that decide whether and when it is asked to give way."""

    #: ``preemptible`` of its configuration; None: it can resume once it has a checkpoint or uses the library.
    preemptible: bool | None = None
    has_checkpoint: bool = False
    #: Its ranks have joined the training library, which writes a checkpoint when it is asked to stop.
    uses_library: bool = False
    #: ``preemption_timeout``: seconds that its ranks may take.
    timeout_s: float = 3600.0
    #: Seconds that the trial's last checkpoint and restart took; None = not measured.
    cost_s: float | None = None

    @property
    def can_resume(self) -> bool:
        """True if the trial continues elsewhere without loss of all of its work."""
        return self.has_checkpoint or self.uses_library if self.preemptible is None else self.preemptible

    @property
    def margin_s(self) -> float:
        """Seconds before the deadline at which it is asked, so that it has given way by then."""
        if self.cost_s is None:
            return self.timeout_s
        return min(self.timeout_s, max(LEAST_MARGIN_S, MARGIN_FACTOR * self.cost_s))


def ask_at(drain: Drain, gang: Resumption) -> datetime | None:
    """Return when a gang is asked to leave a host, None when it may stay until its end."""
    if gang.can_resume:
        return drain.by - timedelta(seconds=gang.margin_s)
    return drain.by if drain.kills else None


def due(drains: Sequence[Drain], gang: Resumption, now: datetime) -> Drain | None:
    """Return the drain with the earliest deadline for which a gang must give way now, None if it may stay.

    :param drains: of the hosts on which it holds slots
    """
    for drain in sorted(drains, key=lambda one: (one.by, one.host)):
        at = ask_at(drain, gang)
        if at is not None and at <= now:
            return drain
    return None


def time_text(at: datetime) -> str:
    """Return a time as UTC in words."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
