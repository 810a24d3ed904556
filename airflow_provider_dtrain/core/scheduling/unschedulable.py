"""Analysis of a request that cannot start: whether it ever can, and which slots are in the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from airflow_provider_dtrain.core.scheduling.free_slots import FreeSlots, stable_order
from airflow_provider_dtrain.core.scheduling.layouts import GangLayout, Row, layouts, whole_layouts
from airflow_provider_dtrain.core.scheduling.model import GangRequest, PoolOptions
from airflow_provider_dtrain.core.scheduling.subset_sum import reachable

NO_HOSTS: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Shortfall:
    """Hosts on which a request that cannot start would start first."""

    #: The hosts that come closest.
    hosts: tuple[str, ...]
    #: Number of slots on them that it needs and that are not free for it.
    missing: int
    #: Hosts among them that are not ready, excluded or closed. Freed slots alone do not help there.
    unusable: tuple[str, ...]
    #: All slots of the hosts are needed.
    is_whole: bool
    #: Hosts with enough free slots for it that are reserved for other requests. Nothing else is in the way there.
    reserved: tuple[str, ...] = ()
    #: Every slot that it needs on ``hosts`` is free, and some are reserved for other requests.
    is_free: bool = False


def could_ever(free_slots: FreeSlots, request: GangRequest, options: PoolOptions) -> bool:
    """Return whether the pool serves the request once every slot is free.

    The state of a host and an exclusion are temporary and do not make a request impossible. Disabled hosts do.
    """
    sizes = free_slots.sizes
    if request.slots == 0:
        return bool(sizes)
    return works(sizes, request.slots, request.is_single_host, options.allow_heterogeneous)


def shortfall(
    free_slots: FreeSlots, request: GangRequest, options: PoolOptions, closed: Set[str] = NO_HOSTS
) -> Shortfall:
    """Return the hosts with the fewest unusable hosts, then with the fewest slots in the way.

    Only for a request that the pool can serve. Ties: hosts where only a reservation is in the way, the earlier
    rule, larger hosts, the stable hash.

    :param closed: hosts that are reserved for other requests
    """
    unusable = (free_slots.size.keys() - free_slots.free.keys()) | closed | request.excluded_hosts
    if request.slots == 0:
        names = tuple(sorted(free_slots.size))
        return Shortfall(names, 0, tuple(name for name in names if name in unusable), False)
    ways = _HostSets(free_slots, unusable, request)
    cost, found, is_whole = min(ways.plans(options.allow_heterogeneous), key=lambda plan: plan[0])
    kept = closed & set(found) if is_whole else closed
    reserved = sorted(name for name in kept if ways.is_free(name, is_whole))
    if not is_whole and found[0] in reserved:
        # Any of these hosts would serve.
        found = reserved
    blocked = tuple(sorted(name for name in found if name in unusable))
    is_free = all(ways.is_free(name, is_whole) for name in found)
    return Shortfall(tuple(sorted(found)), ways.missing(cost), blocked, is_whole, tuple(reserved), is_free)


def works(sizes: Mapping[int, int], slots: int, is_single_host: bool, unequal: bool) -> bool:
    """Return whether ``slots`` > 0 fit on hosts that are entirely free.

    :param sizes: slots of a host -> number of such hosts
    :param unequal: whole hosts of unequal sizes may form one gang
    """
    if slots <= max(sizes, default=0):
        return True
    return not is_single_host and any(whole_layouts(slots, sizes, unequal))


def sums(sizes: Mapping[int, int], limit: int) -> int:
    """Return the sums of slots up to ``limit`` that whole hosts can form, as bits (see ``subset_sum``)."""
    return reachable(((size, count) for size, count in sizes.items() if size), limit)


#: Cost, hosts, and whether all their slots are needed.
_Plan = tuple[int, list[str], bool]


class _HostSets:
    """Placements of one request if the slots that are held now were free, with their costs.

    The cost counts slots in the way. An unusable host weighs more than all slots together, and each of its slots
    that is in use or cannot be used weighs less than one slot.
    """

    def __init__(self, free_slots: FreeSlots, unusable: Set[str], request: GangRequest) -> None:
        self.free_slots = free_slots
        self.unusable = unusable
        self.request = request
        self.slots = request.slots
        self.scale = 1 + sum(free_slots.size.values())
        #: Number of slots -> hosts, largest first.
        self.by_size: dict[int, list[str]] = {size: [] for size in sorted(set(free_slots.size.values()), reverse=True)}
        for name, size in free_slots.size.items():
            self.by_size[size].append(name)

    def plans(self, unequal: bool) -> list[_Plan]:
        """Return the hosts with the fewest slots in the way for each layout, in the order of preference."""
        sizes = {size: len(names) for size, names in self.by_size.items()}
        plans = [self._plan(layout) for layout in layouts(self.request, sizes, unequal)]
        return [plan for plan in plans if plan is not None]

    def _plan(self, layout: GangLayout) -> _Plan | None:
        if layout.is_whole:
            rows = layout.cheapest(lambda size: self._rows(self.by_size[size], size))
        else:
            names = [name for size, listed in self.by_size.items() if size >= self.slots for name in listed]
            rows = [min(self._rows(names, self.slots))] if names else []
        return (sum(cost for cost, _ in rows), [name for _, (_, name) in rows], layout.is_whole) if rows else None

    def missing(self, cost: int) -> int:
        """Return the number of slots in a cost."""
        return cost // self.scale % self.scale

    def is_free(self, name: str, is_whole: bool) -> bool:
        """Return whether a host has the free slots that the request needs, regardless of reservations."""
        wanted = self.free_slots.size.get(name, 0) if is_whole else self.slots
        return self._in_use(name, wanted) == 0

    def _in_use(self, name: str, wanted: int) -> int:
        is_of_use = name in self.free_slots.free and name not in self.request.excluded_hosts
        return max(0, wanted - self.free_slots.free[name]) if is_of_use else wanted

    def _rows(self, names: Sequence[str], wanted: int) -> Iterable[Row]:
        free = self.free_slots.free
        unusable = self.unusable
        scale = self.scale
        costs = [
            (scale + wanted) * scale + self._in_use(name, wanted)
            if name in unusable
            else max(0, wanted - free[name]) * scale
            for name in names
        ]
        return zip(costs, stable_order(self.request.request_id, names), strict=True)
