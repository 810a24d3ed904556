"""The slots of one pool while one decision is made: what is free, and what earlier grants took."""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat

from airflow_provider_dtrain.core.resources import Host, Placement


def first_names(request_id: str, names: Iterable[str], number: int = 1) -> list[str]:
    """Return ``number`` of the names: an order that differs by request and is the same in every process."""
    keyed = stable_order(request_id, names)
    rows = [min(keyed)] if number == 1 else heapq.nsmallest(number, keyed)
    return [name for _, name in rows]


def stable_order(request_id: str, names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Return each name behind a number to sort by; the hash of request and name breaks ties between hosts."""
    listed = list(names)
    seed = zlib.crc32(f"{request_id}\0".encode())
    return zip(map(zlib.crc32, map(str.encode, listed), repeat(seed)), listed, strict=False)


class Board:
    """Free slots by host, indexed by how many there are; kept current by :meth:`take`.

    :param hosts: all registered hosts of the pool, whatever their state
    """

    def __init__(self, hosts: Iterable[Host]) -> None:
        self.hosts: dict[str, Host] = {}
        #: Slots that are switched on, by host; hosts that are disabled are left out.
        self.size: dict[str, int] = {}
        #: Free slots by ready host.
        self.free: dict[str, int] = {}
        #: Number of free slots -> ready hosts. A dict without values keeps the order of the hosts.
        self.by_free: dict[int, dict[str, None]] = {}
        #: Number of slots -> ready hosts on which every one of them is free.
        self.whole: dict[int, dict[str, None]] = {}
        self._taken: dict[str, set[int]] = {}
        self._fill(hosts)

    def _fill(self, hosts: Iterable[Host]) -> None:
        # Builds no set where nothing is switched off: 1,000 hosts are looked at per decision.
        for host in hosts:
            name = host.name
            self.hosts[name] = host
            state = host.state
            if state == "disabled":
                continue
            size = self.size[name] = len(host.enabled) if host.disabled else host.slots
            if state != "ready":
                continue
            free = len(host.free) if host.disabled or host.blocked else size - len(host.held)
            self.free[name] = free
            if free not in self.by_free:
                self.by_free[free] = {}
            self.by_free[free][name] = None
        self._find_whole()

    def _find_whole(self) -> None:
        sizes = self.size
        for free, names in self.by_free.items():
            entirely = {name: None for name in names if sizes[name] == free}
            if free > 0 and entirely:
                self.whole[free] = entirely

    @property
    def sizes(self) -> Counter[int]:
        """Slots of a host -> number of such hosts, whatever their state; without disabled hosts."""
        return Counter(self.size.values())

    def lowest_free(self, name: str, count: int) -> tuple[int, ...]:
        """Return the lowest ``count`` free slot indices of a ready host, ascending."""
        host = self.hosts[name]
        if not (host.held or host.disabled or host.blocked or name in self._taken):
            return tuple(range(count))
        return tuple(sorted(host.free - self._taken.get(name, set()))[:count])

    def taken(self, name: str) -> int:
        """Return how many slots of a host were taken during this decision."""
        return len(self._taken.get(name, ()))

    def take(self, placement: Placement) -> None:
        """Make the slots of a placement unavailable for the rest of the decision."""
        for name, indices in placement.slots.items():
            if not indices:
                continue
            before, after = self.free[name], self.free[name] - len(indices)
            self._taken.setdefault(name, set()).update(indices)
            self.free[name] = after
            del self.by_free[before][name]
            self.by_free.setdefault(after, {})[name] = None
            self.whole.get(self.size[name], {}).pop(name, None)
