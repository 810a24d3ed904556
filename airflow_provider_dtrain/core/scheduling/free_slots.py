"""Free slots of one pool during a decision, with the slots that grants and claims have taken."""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat

from airflow_provider_dtrain.core.scheduling.model import Host, Placement


def first_names(request_id: str, names: Iterable[str], number: int = 1) -> list[str]:
    """Return the first names in an order that differs by request and is the same in every process."""
    keyed = stable_order(request_id, names)
    rows = [min(keyed)] if number == 1 else heapq.nsmallest(number, keyed)
    return [name for _, name in rows]


def stable_order(request_id: str, names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Return (sort key, name) of each name. The key, a hash of request and name, breaks ties between hosts."""
    listed = list(names)
    seed = zlib.crc32(f"{request_id}\0".encode())
    return zip(map(zlib.crc32, map(str.encode, listed), repeat(seed)), listed, strict=False)


class FreeSlots:
    """Free slots by host, indexed by their number. :meth:`take` and :meth:`give` keep the index current.

    :param hosts: all registered hosts of the pool, whatever their state
    """

    def __init__(self, hosts: Iterable[Host]) -> None:
        self.hosts: dict[str, Host] = {}
        #: Number of enabled slots by host, without disabled hosts.
        self.size: dict[str, int] = {}
        #: Number of free slots by ready host.
        self.free: dict[str, int] = {}
        #: Number of free slots -> ready hosts. A dict without values keeps the order of the hosts.
        self.by_free: dict[int, dict[str, None]] = {}
        #: Number of slots -> ready hosts on which every one of them is free.
        self.whole: dict[int, dict[str, None]] = {}
        #: Slots granted during this decision, by host. Used in the messages of waiting requests.
        self.granted: Counter[str] = Counter()
        #: Slots that are free but kept for a claim, by host.
        self.claimed: Counter[str] = Counter()
        #: Log of hosts on which something changed. The owner of an index resumes reading at its last position.
        self.changes: list[str] = []
        #: Free slot indices of hosts on which slots were taken or given back.
        self._open: dict[str, set[int]] = {}
        self._fill(hosts)

    def _fill(self, hosts: Iterable[Host]) -> None:
        # Builds no set where no slot is disabled, because a decision reads up to 1,000 hosts.
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
        """Slots of a host -> number of such hosts in any state except disabled."""
        return Counter(self.size.values())

    def total(self) -> int:
        """Return the number of free slots of all ready hosts."""
        return sum(free * len(names) for free, names in self.by_free.items())

    def lowest_free(self, name: str, count: int) -> tuple[int, ...]:
        """Return the lowest ``count`` free slot indices of a ready host, ascending."""
        if name in self._open:
            return tuple(sorted(self._open[name])[:count])
        host = self.hosts[name]
        if not (host.held or host.disabled or host.blocked):
            return tuple(range(count))
        return tuple(sorted(host.free)[:count])

    def is_free(self, name: str, indices: Iterable[int]) -> bool:
        """Return whether all these slots of a host can be granted now."""
        return name in self.free and self._free_set(name).issuperset(indices)

    def free_among(self, placement: Placement) -> Placement:
        """Return the part of a placement whose slots can be granted now."""
        parts = {
            name: tuple(sorted(self._free_set(name).intersection(indices)))
            for name, indices in placement.slots.items()
            if name in self.free
        }
        return Placement({name: indices for name, indices in parts.items() if indices})

    def taken(self, name: str) -> int:
        """Return how many slots of a host were granted during this decision."""
        return self.granted[name]

    def grant(self, placement: Placement) -> None:
        """Take the slots of a placement and count them as granted in this decision."""
        self.take(placement)
        for name, indices in placement.slots.items():
            self.granted[name] += len(indices)

    def keep(self, placement: Placement) -> Placement:
        """Take the free slots of a placement for a claim, and return them."""
        part = self.free_among(placement)
        self.take(part)
        self.claimed.update({name: len(indices) for name, indices in part.slots.items()})
        return part

    def unkeep(self, placement: Placement) -> None:
        """Give back the slots that were kept for a claim."""
        self.claimed.subtract({name: len(indices) for name, indices in placement.slots.items()})
        self.give(placement)

    def take(self, placement: Placement) -> None:
        """Make free slots unavailable."""
        for name, indices in placement.slots.items():
            if indices:
                self._free_set(name).difference_update(indices)
                self._move(name, self.free[name] - len(indices))

    def give(self, placement: Placement) -> None:
        """Make slots available again, except those that cannot be granted for now."""
        for name, indices in placement.slots.items():
            if name in self.free and indices:
                host = self.hosts[name]
                opened = self._free_set(name)
                opened.update(set(indices).intersection(host.enabled).difference(host.blocked))
                self._move(name, len(opened))

    def _free_set(self, name: str) -> set[int]:
        if name not in self._open:
            self._open[name] = set(self.hosts[name].free)
        return self._open[name]

    def _move(self, name: str, after: int) -> None:
        before = self.free[name]
        size = self.size[name]
        self.free[name] = after
        self.changes.append(name)
        del self.by_free[before][name]
        self.by_free.setdefault(after, {})[name] = None
        if after == size:
            self.whole.setdefault(size, {})[name] = None
        elif before == size:
            del self.whole[size][name]


def joined(one: Placement, more: Placement) -> Placement:
    """Return a placement with the slots of both."""
    names = [*one.slots, *(name for name in more.slots if name not in one.slots)]
    return Placement({name: tuple(sorted({*one.slots.get(name, ()), *more.slots.get(name, ())})) for name in names})
