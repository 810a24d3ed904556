"""Aging: protects the oldest requests that waited ``max_wait``, up to a share of the pool's slots."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import NamedTuple

from airflow_provider_dtrain.core.scheduling.model import PoolOptions
from airflow_provider_dtrain.core.scheduling.priority_tiers import EPSILON


class Overdue(NamedTuple):
    """Waiting or running request that waited ``max_wait``. Sorts by submission."""

    sequence: int
    request_id: str
    slots: int


class Protection:
    """Overdue requests of each priority, and those that the last :meth:`settle` protected.

    :param pool_slots: slots of all hosts of the pool that are not disabled
    """

    def __init__(self, pool_slots: int, options: PoolOptions) -> None:
        self.pool_slots = pool_slots
        self.options = options
        self._overdue: dict[int, list[Overdue]] = {}
        self._protected: dict[int, set[str]] = {}
        self._unsettled: set[int] = set()

    def note(self, priority: int, entry: Overdue) -> None:
        """Add a request that waited ``max_wait``. Idempotent."""
        entries = self._overdue.setdefault(priority, [])
        place = bisect.bisect_left(entries, entry)
        if place == len(entries) or entries[place] != entry:
            entries.insert(place, entry)
            self._unsettled.add(priority)

    def drop(self, priority: int, entry: Overdue) -> None:
        """Remove a request that has ended or no longer counts. Idempotent."""
        entries = self._overdue.get(priority, [])
        place = bisect.bisect_left(entries, entry)
        if place < len(entries) and entries[place] == entry:
            del entries[place]
            self._unsettled.add(priority)

    def settle(self) -> list[str]:
        """Update the protected requests, and return those that changed, in a fixed order."""
        changed: list[str] = []
        for priority in sorted(self._unsettled):
            before = self._protected.get(priority, set())
            now = protected(self._overdue[priority], self.pool_slots, self.options)
            self._protected[priority] = now
            changed += sorted(now ^ before)
        self._unsettled.clear()
        return changed

    def covers(self, priority: int, request_id: str) -> bool:
        """Return whether a request is protected."""
        return request_id in self._protected.get(priority, ())

    def overdue(self, priority: int) -> list[Overdue]:
        """Return the overdue requests of a priority, the oldest first."""
        return self._overdue.get(priority, [])


def protected(overdue: Iterable[Overdue], pool_slots: int, options: PoolOptions) -> set[str]:
    """Return the protected ones among the overdue requests of a priority: the oldest that fill the share.

    :param overdue: in order of submission
    :param pool_slots: slots of all hosts of the pool that are not disabled
    """
    chosen: set[str] = set()
    total = 0
    for entry in overdue:
        total += entry.slots
        if chosen and total > options.protected_share * pool_slots + EPSILON:
            break
        chosen.add(entry.request_id)
    return chosen
