"""Reservations: choice of hosts for a request that cannot start, and the facts that limit their use meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from airflow_provider_dtrain.core.scheduling.free_slots import FreeSlots, stable_order
from airflow_provider_dtrain.core.scheduling.layouts import GangLayout, Row, layouts
from airflow_provider_dtrain.core.scheduling.model import GangRequest, PoolOptions
from airflow_provider_dtrain.core.scheduling.priority_tiers import PriorityRank
from airflow_provider_dtrain.core.scheduling.running_gangs import RunningGangs

#: Weight of a slot in the way: more than all seconds that gangs ever held slots.
SLOT = 1 << 44

#: Cost, then the hosts.
_Plan = tuple[int, list[str]]


def is_sensible(free_slots: FreeSlots, request: GangRequest, hosts: Sequence[str], options: PoolOptions) -> bool:
    """Return whether the request could still start on the hosts that are reserved for it."""
    usable = all(name in free_slots.free and name not in request.excluded_hosts for name in hosts)
    if not usable or not hosts:
        return False
    if len(hosts) == 1 and _able(free_slots, hosts[0]) >= request.slots:
        return True
    sizes = [free_slots.size[name] for name in hosts]
    if request.is_single_host or sum(sizes) != request.slots:
        return False
    is_one_size = len(set(sizes)) == 1 or options.allow_heterogeneous
    return is_one_size and all(_able(free_slots, name) == size for name, size in zip(hosts, sizes, strict=True))


def _able(free_slots: FreeSlots, name: str) -> int:
    """Return how many slots of a host can be granted at most, apart from its blocked slots."""
    host = free_slots.hosts[name]
    return free_slots.size[name] - (len(host.blocked & host.enabled) if host.blocked else 0)


@dataclass(frozen=True)
class ReservationSearch:
    """Search for the hosts to reserve for one request."""

    free_slots: FreeSlots
    gangs: RunningGangs
    request: GangRequest
    rank: PriorityRank
    options: PoolOptions
    now: float
    #: Hosts that are excluded for it or reserved for other requests.
    banned: Set[str]

    def run(self) -> tuple[str, ...]:
        """Return the hosts with the fewest slots in the way for good, ties by least time held, or ()."""
        if self.request.slots == 0:
            return ()
        whole = self._by_size()
        sizes = {size: len(names) for size, names in whole.items()}
        plans: list[_Plan] = []
        for layout in layouts(self.request, sizes, self.options.allow_heterogeneous):
            # Unequal hosts only if nothing else will do, however few slots are in the way there.
            if not (layout.is_unequal and plans):
                plans += self._plans(layout, whole)
        return tuple(sorted(min(plans, key=lambda plan: plan[0])[1])) if plans else ()

    def _plans(self, layout: GangLayout, whole: Mapping[int, Sequence[str]]) -> list[_Plan]:
        """Return the cheapest hosts of a layout, or nothing when no host is large enough."""
        if layout.is_whole:
            rows = layout.cheapest(lambda size: self._rows(whole[size], False))
        else:
            names = [name for name in self._usable() if _able(self.free_slots, name) >= self.request.slots]
            rows = [min(self._rows(names, True))] if names else []
        return [(sum(cost for cost, _ in rows), [name for _, (_, name) in rows])] if rows else []

    def _usable(self) -> list[str]:
        return [name for name in self.free_slots.free if name not in self.banned]

    def _by_size(self) -> dict[int, list[str]]:
        """Return usable hosts on which every slot can become free, by size, largest first."""
        names = [name for name in self._usable() if _able(self.free_slots, name) == self.free_slots.size[name]]
        sizes = sorted({self.free_slots.size[name] for name in names} - {0}, reverse=True)
        return {size: [name for name in names if self.free_slots.size[name] == size] for size in sizes}

    def _rows(self, names: Sequence[str], is_shared: bool) -> list[Row]:
        return [(self._cost(row[1], is_shared), row) for row in stable_order(self.request.request_id, names)]

    def _cost(self, name: str, is_shared: bool) -> int:
        """Return the cost of a host: slots out of reach of the request and of preemption, then time held."""
        able = _able(self.free_slots, name)
        wanted = self.request.slots if is_shared else able
        missing = wanted - self.free_slots.free[name]
        if missing <= 0:
            return 0
        in_the_way = max(0, missing - self.gangs.coming(name, self.rank))
        seconds = self.gangs.held_seconds(name, self.rank, self.now)
        return in_the_way * SLOT + int(min(seconds, SLOT >> 12))


def is_for_good(
    free_slots: FreeSlots, gangs: RunningGangs, request: GangRequest, rank: PriorityRank, hosts: Sequence[str]
) -> bool:
    """Return whether a reservation needs slots that its holder can never free by preemption.

    Otherwise the holder waits at most for ``min_run`` of the last gangs, and new gangs there would prolong that.
    """
    is_shared = len(hosts) == 1 and free_slots.size[hosts[0]] > request.slots
    for name in hosts:
        missing = (request.slots if is_shared else free_slots.size[name]) - free_slots.free[name]
        if missing > gangs.coming(name, rank):
            return True
    return False


def due(free_slots: FreeSlots, gangs: RunningGangs, hosts: Sequence[str], now: float) -> float | None:
    """Return the seconds until every gang on reserved hosts has ended, or None when that is not known."""
    latest = 0.0
    for name in hosts:
        held = 0
        for gang in gangs.on(name):
            if gang.ends_at is None:
                return None
            held += len(gang.placement.slots[name])
            latest = max(latest, gang.ends_at - now)
        if free_slots.free[name] + held != free_slots.size[name]:
            return None
    return latest
