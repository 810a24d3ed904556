"""Slot hours of gangs by day."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

DAY_S: Final = 86_400


@dataclass(frozen=True, kw_only=True)
class SlotUse:
    """Gangs of one name that held their slots from one day to another, added up.

    Times are seconds since the begin of the first day of a report, each times the slots of its gang.
    """

    name: str
    #: Index of the day of the grants and of the releases.
    first: int
    last: int
    slots: int
    since_s: float
    until_s: float


def days_until(now: datetime, count: int) -> list[date]:
    """Return the last days in UTC up to today, oldest first."""
    today = now.astimezone(UTC).date()
    return [today - timedelta(days=back) for back in reversed(range(count))]


def slot_hours(uses: Iterable[SlotUse], days: int) -> dict[str, list[float]]:
    """Return name -> slot hours of each of successive days in UTC. A gang counts on each day that it held its slots."""
    found: dict[str, list[float]] = {}
    for use in uses:
        hours = found.setdefault(use.name, [0.0] * days)
        for day in range(use.first, min(use.last, days - 1) + 1):
            since = use.since_s if day == use.first else use.slots * day * DAY_S
            until = use.until_s if day == use.last else use.slots * (day + 1) * DAY_S
            hours[day] += (until - since) / 3600
    return found
