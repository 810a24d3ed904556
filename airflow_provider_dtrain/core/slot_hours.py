"""Slot hours of gangs by day."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class SlotUse:
    """Slots that one gang held from its grant to its release."""

    name: str
    slots: int
    since: datetime
    until: datetime


def days_until(now: datetime, count: int) -> list[date]:
    """Return the last days in UTC up to today, oldest first."""
    today = now.astimezone(UTC).date()
    return [today - timedelta(days=back) for back in reversed(range(count))]


def slot_hours(uses: Iterable[SlotUse], days: list[date]) -> dict[str, list[float]]:
    """Return name -> slot hours of each of successive days in UTC. A gang counts on each day that it held its slots.

    Names without use on any of these days are absent.
    """
    found: dict[str, list[float]] = {}
    begin = datetime(days[0].year, days[0].month, days[0].day, tzinfo=UTC)
    for use in uses:
        first = max(0, (use.since - begin) // DAY)
        for index in range(first, len(days)):
            start, end = begin + index * DAY, begin + (index + 1) * DAY
            seconds = (min(use.until, end) - max(use.since, start)).total_seconds()
            if seconds <= 0:
                break
            found.setdefault(use.name, [0.0] * len(days))[index] += use.slots * seconds / 3600
    return found
