"""Reservations: choice of hosts for a request that cannot start, and the facts that limit their use meanwhile."""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set
from dataclasses import dataclass

from airflow_provider_dtrain.core.scheduling.free_slots import Board, stable_order
from airflow_provider_dtrain.core.scheduling.model import GangRequest, PoolOptions
from airflow_provider_dtrain.core.scheduling.priority_tiers import Rank
from airflow_provider_dtrain.core.scheduling.running_gangs import Gangs
from airflow_provider_dtrain.core.scheduling.subset_sum import cheapest_subset

#: Weight of a slot in the way: more than all seconds that gangs ever held slots.
SLOT = 1 << 44

#: Cost of a host, then the host after its tie-break.
_Row = tuple[int, tuple[int, str]]
_Plan = tuple[int, list[str]]


def is_sensible(board: Board, request: GangRequest, hosts: Sequence[str], options: PoolOptions) -> bool:
    """Return whether the request could still start on the hosts that are reserved for it."""
    usable = all(name in board.free and name not in request.excluded_hosts for name in hosts)
    if not usable or not hosts:
        return False
    if len(hosts) == 1 and _able(board, hosts[0]) >= request.slots:
        return True
    sizes = [board.size[name] for name in hosts]
    if request.is_single_host or sum(sizes) != request.slots:
        return False
    is_one_size = len(set(sizes)) == 1 or options.allow_heterogeneous
    return is_one_size and all(_able(board, name) == size for name, size in zip(hosts, sizes, strict=True))


def _able(board: Board, name: str) -> int:
    """Return how many slots of a host can be granted at most, apart from its blocked slots."""
    host = board.hosts[name]
    return board.size[name] - (len(host.blocked & host.enabled) if host.blocked else 0)


@dataclass(frozen=True)
class Reserving:
    """Search for the hosts to reserve for one request."""

    board: Board
    gangs: Gangs
    request: GangRequest
    rank: Rank
    options: PoolOptions
    now: float
    #: Hosts that are excluded for it or reserved for other requests.
    banned: Set[str]

    def run(self) -> tuple[str, ...]:
        """Return the hosts with the fewest slots in the way for good, ties by least time held, or ()."""
        if self.request.slots == 0:
            return ()
        plans = [plan for plan in (self._one_host(), *self._equal_hosts()) if plan is not None]
        if not plans and self.options.allow_heterogeneous and not self.request.is_single_host:
            plans = [plan for plan in [self._unequal_hosts()] if plan is not None]
        return tuple(sorted(min(plans, key=lambda plan: plan[0])[1])) if plans else ()

    def _one_host(self) -> _Plan | None:
        rows = self._rows([name for name in self._usable() if _able(self.board, name) >= self.request.slots], True)
        return _plan([min(rows)]) if rows else None

    def _equal_hosts(self) -> list[_Plan | None]:
        if self.request.is_single_host:
            return []
        plans = []
        for size, names in self._by_size().items():
            wanted = self.request.slots // size
            if wanted * size == self.request.slots and 1 < wanted <= len(names):
                plans.append(_plan(heapq.nsmallest(wanted, self._rows(names, False))))
        return [*plans]

    def _unequal_hosts(self) -> _Plan | None:
        groups = [(size, sorted(self._rows(names, False))) for size, names in self._by_size().items()]
        fitting = [(size, rows) for size, rows in groups if size <= self.request.slots]
        costs = [(size, [cost for cost, _ in rows]) for size, rows in fitting]
        counts = cheapest_subset(costs, self.request.slots)
        if counts is None:
            return None
        return _plan([row for count, (_, rows) in zip(counts, fitting, strict=True) for row in rows[:count]])

    def _usable(self) -> list[str]:
        return [name for name in self.board.free if name not in self.banned]

    def _by_size(self) -> dict[int, list[str]]:
        """Return usable hosts on which every slot can become free, by size, largest first."""
        names = [name for name in self._usable() if _able(self.board, name) == self.board.size[name]]
        sizes = sorted({self.board.size[name] for name in names} - {0}, reverse=True)
        return {size: [name for name in names if self.board.size[name] == size] for size in sizes}

    def _rows(self, names: Sequence[str], is_shared: bool) -> list[_Row]:
        return [(self._cost(row[1], is_shared), row) for row in stable_order(self.request.request_id, names)]

    def _cost(self, name: str, is_shared: bool) -> int:
        """Return the cost of a host: slots out of reach of the request and of preemption, then time held."""
        able = _able(self.board, name)
        wanted = self.request.slots if is_shared else able
        missing = wanted - self.board.free[name]
        if missing <= 0:
            return 0
        in_the_way = max(0, missing - self.gangs.coming(name, self.rank))
        seconds = self.gangs.held_seconds(name, self.rank, self.now)
        return in_the_way * SLOT + int(min(seconds, SLOT >> 12))


def _plan(rows: Sequence[_Row]) -> _Plan:
    return sum(cost for cost, _ in rows), [name for _, (_, name) in rows]


def is_for_good(board: Board, gangs: Gangs, request: GangRequest, rank: Rank, hosts: Sequence[str]) -> bool:
    """Return whether a reservation needs slots that its holder can never free by preemption.

    Otherwise the holder waits at most for ``min_run`` of the last gangs, and new gangs there would prolong that.
    """
    is_shared = len(hosts) == 1 and board.size[hosts[0]] > request.slots
    for name in hosts:
        missing = (request.slots if is_shared else board.size[name]) - board.free[name]
        if missing > gangs.coming(name, rank):
            return True
    return False


def due(board: Board, gangs: Gangs, hosts: Sequence[str], now: float) -> float | None:
    """Return the seconds until every gang on reserved hosts has ended, or None when that is not known."""
    latest = 0.0
    for name in hosts:
        held = 0
        for gang in gangs.on(name):
            if gang.ends_at is None:
                return None
            held += len(gang.placement.slots[name])
            latest = max(latest, gang.ends_at - now)
        if board.free[name] + held != board.size[name]:
            return None
    return latest
