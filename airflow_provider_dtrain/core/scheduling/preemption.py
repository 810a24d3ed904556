"""Preemption: choice of the running gangs to end for a waiting request, with the least lost work."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from airflow_provider_dtrain.core.scheduling.free_slots import FreeSlots, stable_order
from airflow_provider_dtrain.core.scheduling.layouts import GangLayout, Row, layouts
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Placement, PoolOptions
from airflow_provider_dtrain.core.scheduling.placement import find
from airflow_provider_dtrain.core.scheduling.priority_tiers import PriorityRank
from airflow_provider_dtrain.core.scheduling.running_gangs import ActiveGang, Reach, RunningGangs


@dataclass(frozen=True)
class PreemptionChoice:
    """Gangs to end, and the slots that the request gets after their end."""

    victims: tuple[ActiveGang, ...]
    placement: Placement


#: Cost of a set of victims: slots ended, gangs ended, seconds run. Their ids follow, for a stable result.
_Cost = tuple[int, int, float, tuple[str, ...]]


@dataclass(frozen=True)
class PreemptionSearch:
    """Search for the victims of one request that found no free slots."""

    free_slots: FreeSlots
    gangs: RunningGangs
    reach: Reach
    request: GangRequest
    rank: PriorityRank
    options: PoolOptions
    now: float
    #: Hosts that are excluded for it or reserved for other requests.
    banned: Set[str]

    def run(self) -> PreemptionChoice | None:
        """Return the victims of least cost, or None when no allowed set makes room."""
        if self.options.preemption == "off" or self.request.slots == 0:
            return None
        sizes = self.reach.whole_sizes(self.banned)
        for layout in layouts(self.request, sizes, self.options.allow_heterogeneous):
            if layout.is_whole:
                victims = self._on_whole_hosts(layout)
                if victims:
                    return self._trimmed(victims)
            else:
                found = self._on_one_host()
                if found is not None:
                    return found
        return None

    def _on_one_host(self) -> PreemptionChoice | None:
        wanted = self.request.slots
        free = self.free_slots.free
        names = self._hosts()
        best: tuple[_Cost, int, str] | None = None
        ties = stable_order(self.request.request_id, names)
        for need, tie, name in sorted((wanted - free[name], tie, name) for tie, name in ties):
            if best is not None and need > best[0][0]:
                break
            cost = self._cheapest_cover(name, need)
            is_better = cost is not None and (best is None or (cost[:3], tie, name) < (best[0][:3], best[1], best[2]))
            if cost is not None and is_better and self._may_all_stop(name, cost[3]):
                best = (cost, tie, name)
        return None if best is None else self._claim_on(best[2], best[0][3])

    def _hosts(self) -> list[str]:
        return self.reach.hosts_with(self.request.slots, self.banned)

    def _victims(self, name: str) -> list[ActiveGang]:
        return self.gangs.victims(name, self.rank)

    def _may_all_stop(self, name: str, ids: Sequence[str]) -> bool:
        return True

    def _cheapest_cover(self, name: str, need: int) -> _Cost | None:
        found = [(len(gang.placement.slots[name]), gang) for gang in self._victims(name)]
        if sum(count for count, _ in found) < need:
            return None
        rows = [(count, (gang.slots, 1, self.now - gang.started, (gang.request_id,))) for count, gang in found]
        exact = [cost for count, cost in rows if count == need == cost[0]]
        return min(exact, key=lambda cost: cost[2:]) if exact else cheapest_cover(rows, need)

    def _claim_on(self, name: str, ids: Sequence[str]) -> PreemptionChoice:
        victims = tuple(self.gangs.by_id[request_id] for request_id in ids)
        free = self.free_slots.lowest_free(name, self.request.slots)
        freed = sorted(index for gang in victims for index in gang.placement.slots[name])
        slots = sorted([*free, *freed[: self.request.slots - len(free)]])
        return PreemptionChoice(victims, Placement({name: tuple(slots)}))

    def _on_whole_hosts(self, layout: GangLayout) -> list[ActiveGang]:
        """Return the gangs on the cheapest hosts that can be emptied."""
        if not layout.is_unequal:
            (size,) = layout.sizes
            return _Emptying(self._emptiable(size), self).choose(self.request.slots // size)
        names = [name for _, (_, name) in layout.cheapest(self._rows)]
        found = {gang.request_id: gang for name in names for gang in self.gangs.victims(name, self.rank)}
        return [found[request_id] for request_id in sorted(found)]

    def _emptiable(self, size: int) -> list[str]:
        return [name for name in self.reach.whole[size] if name not in self.banned]

    def _rows(self, size: int) -> list[Row]:
        """Return the hosts of a size that can be emptied, by the number of slots to end."""
        ties = stable_order(self.request.request_id, self._emptiable(size))
        return [(size - self.free_slots.free[name], (tie, name)) for tie, name in ties]

    def _trimmed(self, victims: Sequence[ActiveGang]) -> PreemptionChoice | None:
        """Drop every victim that the request does not need in order to fit, the largest first."""
        with_all = {gang.request_id: self._freed(gang) for gang in victims}
        for placement in with_all.values():
            self.free_slots.give(placement)
        kept = dict(with_all)
        for gang in sorted(victims, key=lambda gang: (-gang.slots, gang.started, gang.request_id)):
            self.free_slots.take(kept.pop(gang.request_id))
            if find(self.free_slots, self.request, self.options, self.banned) is None:
                kept[gang.request_id] = with_all[gang.request_id]
                self.free_slots.give(kept[gang.request_id])
        found = find(self.free_slots, self.request, self.options, self.banned)
        for freed in kept.values():
            self.free_slots.take(freed)
        chosen = tuple(gang for gang in victims if gang.request_id in kept)
        return PreemptionChoice(chosen, found) if found is not None and chosen else None

    def _freed(self, gang: ActiveGang) -> Placement:
        """Return the slots that can be granted after its end."""
        hosts = self.free_slots.hosts
        parts = {name: indices for name, indices in gang.placement.slots.items() if name in self.free_slots.free}
        usable = {
            name: tuple(index for index in indices if index in hosts[name].enabled and index not in hosts[name].blocked)
            for name, indices in parts.items()
        }
        return Placement({name: indices for name, indices in usable.items() if indices})


def cheapest_cover(rows: Iterable[tuple[int, _Cost]], need: int) -> _Cost | None:
    """Return the cost of the cheapest set of gangs that holds at least ``need`` slots of a host, else None.

    Exact: dynamic programming over the slots covered so far.

    :param rows: (slots on the host, > 0; cost of the gang)
    """
    best: dict[int, _Cost] = {0: (0, 0, 0.0, ())}
    for count, (slots, gangs, seconds, ids) in sorted(rows, key=lambda row: row[1][3]):
        for covered, cost in sorted(best.items(), reverse=True):
            after = min(need, covered + count)
            offer = (cost[0] + slots, cost[1] + gangs, cost[2] + seconds, cost[3] + ids)
            if covered < need and (after not in best or offer < best[after]):
                best[after] = offer
    return best.get(need)


class _Emptying:
    """Whole hosts by the cost of emptying them.

    A chosen gang is paid for once, for all of its hosts.
    """

    def __init__(self, names: Sequence[str], search: PreemptionSearch) -> None:
        self.search = search
        self.on: dict[str, dict[str, ActiveGang]] = {}
        self.tie = {name: tie for tie, name in stable_order(search.request.request_id, names)}
        for name in names:
            self.on[name] = {gang.request_id: gang for gang in search.gangs.victims(name, search.rank)}

    def choose(self, wanted: int) -> list[ActiveGang]:
        """Return the gangs to end in order to empty this many hosts."""
        heap = [self._entry(name) for name in self.on]
        heapq.heapify(heap)
        chosen: dict[str, ActiveGang] = {}
        open_hosts = set(self.on)
        while wanted:
            entry = heapq.heappop(heap)
            name = entry[-1]
            if name not in open_hosts:
                continue
            fresh = self._entry(name)
            if fresh != entry:
                heapq.heappush(heap, fresh)
                continue
            open_hosts.discard(name)
            wanted -= 1
            self._end(list(self.on[name].values()), chosen, heap)
        return list(chosen.values())

    def _entry(self, name: str) -> tuple[float, float, int, str]:
        gangs = self.on[name].values()
        hosts = {host for gang in gangs for host, indices in gang.placement.slots.items() if indices}
        seconds = sum(self.search.now - gang.started for gang in gangs)
        return sum(gang.slots for gang in gangs) / max(1, len(hosts)), seconds, self.tie[name], name

    def _end(
        self, gangs: Sequence[ActiveGang], chosen: dict[str, ActiveGang], heap: list[tuple[float, float, int, str]]
    ) -> None:
        for gang in sorted(gangs, key=lambda gang: gang.request_id):
            chosen[gang.request_id] = gang
            for host in gang.placement.slots:
                if self.on.get(host, {}).pop(gang.request_id, None) is not None:
                    heapq.heappush(heap, self._entry(host))
