"""Which requests of a pool are protected: the oldest of those that waited ``max_wait``, up to a share of it."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import NamedTuple

from airflow_provider_dtrain.core.classes import EPSILON
from airflow_provider_dtrain.core.resources import PoolOptions


class Overdue(NamedTuple):
    """A request, waiting or running, that waited ``max_wait``; sorts by submission."""

    sequence: int
    request_id: str
    slots: int


class Protection:
    """The overdue requests of each priority, and who of them is protected since :meth:`settle` was called.

    :param pool_slots: slots of all hosts of the pool that are not disabled
    """

    def __init__(self, pool_slots: int, options: PoolOptions) -> None:
        self.pool_slots, self.options = pool_slots, options
        self._overdue: dict[int, list[Overdue]] = {}
        self._protected: dict[int, set[str]] = {}
        self._unsettled: set[int] = set()

    def note(self, priority: int, entry: Overdue) -> None:
        """Count a request in that waited ``max_wait``; repeatable."""
        entries = self._overdue.setdefault(priority, [])
        place = bisect.bisect_left(entries, entry)
        if place == len(entries) or entries[place] != entry:
            entries.insert(place, entry)
            self._unsettled.add(priority)

    def drop(self, priority: int, entry: Overdue) -> None:
        """Count a request out that has ended; repeatable."""
        entries = self._overdue.get(priority, [])
        place = bisect.bisect_left(entries, entry)
        if place < len(entries) and entries[place] == entry:
            del entries[place]
            self._unsettled.add(priority)

    def settle(self) -> list[str]:
        """Bring the protected requests up to date; return those that are so since or no longer, in a fixed order."""
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
    """Return who is protected among the overdue requests of one priority: the oldest that fill the share.

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
