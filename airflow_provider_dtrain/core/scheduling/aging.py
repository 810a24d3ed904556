"""Aging: protects the requests that waited longest, up to a share of the pool's slots."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from airflow_provider_dtrain.core.scheduling.model import PoolOptions
from airflow_provider_dtrain.core.scheduling.priority_tiers import EPSILON, OVERDUE, PROTECTED


class Late(NamedTuple):
    """Waiting or running request that waited its limit, or nearly.

    Sorts by steps, then by slots, most first, then by submission.
    """

    #: Negative number of steps that it waited beyond its limit: 1 = it nearly waited the limit.
    minus_steps: int
    minus_slots: int
    sequence: int
    request_id: str


class Protection:
    """Late requests of each priority, and the classes that the last :meth:`settle` gave them.

    :param pool_slots: slots of all hosts of the pool that are not disabled
    """

    def __init__(self, pool_slots: int, options: PoolOptions) -> None:
        self.pool_slots = pool_slots
        self.options = options
        self._late: dict[int, list[Late]] = {}
        self._entries: dict[tuple[int, str], Late] = {}
        self._levels: dict[int, dict[str, int]] = {}
        self._unsettled: set[int] = set()

    def note(self, priority: int, entry: Late) -> None:
        """Add a late request, or change its steps. Idempotent."""
        key = priority, entry.request_id
        if self._entries.get(key) != entry:
            self.drop(*key)
            self._entries[key] = entry
            bisect.insort(self._late.setdefault(priority, []), entry)
            self._unsettled.add(priority)

    def drop(self, priority: int, request_id: str) -> None:
        """Remove a request that has ended or no longer counts. Idempotent."""
        entry = self._entries.pop((priority, request_id), None)
        if entry is not None:
            entries = self._late[priority]
            del entries[bisect.bisect_left(entries, entry)]
            self._unsettled.add(priority)

    def settle(self) -> list[str]:
        """Update the classes of late requests, and return those that changed, in a fixed order."""
        changed: list[str] = []
        for priority in sorted(self._unsettled):
            before = self._levels.get(priority, {})
            now = self._levels[priority] = late_levels(self._late[priority], self.pool_slots, self.options)
            changed += sorted(one for one in now.keys() | before.keys() if now.get(one) != before.get(one))
        self._unsettled.clear()
        return changed

    def level(self, priority: int, request_id: str) -> int | None:
        """Return the class of a request by its wait alone, see :func:`late_levels`."""
        return self._levels.get(priority, {}).get(request_id)

    def protectable(self, priority: int) -> list[str]:
        """Return the requests of a priority that waited their limit, in the order of protection."""
        return [entry.request_id for entry in self._late.get(priority, ()) if entry.minus_steps <= 0]


def late_levels(late: Sequence[Late], pool_slots: int, options: PoolOptions) -> dict[str, int]:
    """Return the classes of the late requests of a priority that are protected or overdue.

    Protected are those that waited longest and fill the share. Overdue are those that are at most a step behind: behind
    the limit, or behind the last protected one while the share is full.

    :param late: sorted
    :param pool_slots: slots of all hosts of the pool that are not disabled
    """
    share = options.protected_share * pool_slots + EPSILON
    sums = itertools.accumulate(-entry.minus_slots for entry in late)
    candidates = [(entry, total) for entry, total in zip(late, sums, strict=True) if entry.minus_steps <= 0]
    chosen = [entry for number, (entry, total) in enumerate(candidates) if number == 0 or total <= share]
    last = chosen[-1].minus_steps if len(chosen) < len(candidates) else 0
    levels = {entry.request_id: OVERDUE for entry in late if entry.minus_steps <= last + 1}
    return {**levels, **{entry.request_id: PROTECTED + entry.minus_steps for entry in chosen}}
