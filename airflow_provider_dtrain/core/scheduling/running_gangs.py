"""Gangs that hold slots of one pool, by host, with the facts that decide whether they may be preempted."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from airflow_provider_dtrain.core.scheduling.free_slots import FreeSlots
from airflow_provider_dtrain.core.scheduling.model import Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.scheduling.priority_tiers import (
    EPSILON,
    PriorityRank,
    level_of,
    may_interrupt,
    min_run_s,
)


@dataclass(slots=True, eq=False)
class ActiveGang:
    """Running gang. Its counters are stored as times, so that they stay valid while time passes."""

    request_id: str
    placement: Placement
    slots: int
    owner: str
    priority: int
    sequence: int
    group: str
    weight: float
    #: Time at which ``held_s`` would have been 0 if it had held slots without a break.
    held_from: float
    waited_s: float
    started: float
    is_preemptible: bool
    cost_s: float
    is_ending: bool
    #: Time at which ``max_runtime`` ends it; None = no limit.
    ends_at: float | None
    level: int

    #: Its priority and class while it can be preempted and has run for long enough, else None.
    ripe: tuple[int, int] | None = None
    crowd: str = ""

    @property
    def rank(self) -> PriorityRank:
        """Rank that decides which requests may preempt it."""
        return PriorityRank(self.priority, self.level)


def gang_of(running: RunningGang, now: float, options: PoolOptions) -> ActiveGang:
    """Return a running gang with its counters as times, in its class without regard to its wait."""
    return ActiveGang(
        running.request_id,
        running.placement,
        running.placement.size,
        running.owner,
        running.priority,
        running.sequence,
        running.group,
        running.weight,
        now - running.held_s,
        running.waited_s,
        now - running.ran_s,
        running.is_preemptible,
        running.cost_s,
        running.is_ending,
        None if running.ends_in_s is None else now + running.ends_in_s,
        level_of(running.placement.size, running.held_s, None, options),
        crowd=running.crowd,
    )


class RunningGangs:
    """All gangs that hold slots of the pool.

    :param changes: receives the name of each host on which a request may now get other slots than before
    """

    def __init__(self, options: PoolOptions, changes: list[str]) -> None:
        self.options = options
        self.changes = changes
        self.by_id: dict[str, ActiveGang] = {}
        self._on: dict[str, dict[str, ActiveGang]] = {}
        #: host -> (priority, class) -> slots of gangs that have run for long enough and can be preempted.
        self._ripe: dict[str, dict[tuple[int, int], int]] = {}

    def add(self, gang: ActiveGang, now: float) -> None:
        """Add a gang."""
        self.by_id[gang.request_id] = gang
        for name, indices in gang.placement.slots.items():
            if indices:
                self._on.setdefault(name, {})[gang.request_id] = gang
                self._ripe.setdefault(name, {})
        self.update(gang, gang.level, now)

    def remove(self, request_id: str) -> ActiveGang:
        """Remove a gang and return it."""
        gang = self.by_id.pop(request_id)
        self._count(gang, None)
        for name, indices in gang.placement.slots.items():
            if indices:
                del self._on[name][request_id]
        return gang

    def update(self, gang: ActiveGang, level: int, now: float) -> None:
        """Update the class of a gang, and whether it can be preempted now."""
        may_stop = gang.is_preemptible and not gang.is_ending
        is_ripe = may_stop and now - gang.started + EPSILON >= min_run_s(gang.cost_s, self.options)
        if level != gang.level:
            self.changes.extend(gang.placement.slots)
        gang.level = level
        self._count(gang, (gang.priority, level) if is_ripe else None)

    def _count(self, gang: ActiveGang, ripe: tuple[int, int] | None) -> None:
        before = gang.ripe
        gang.ripe = ripe
        if before == ripe:
            return
        for name, indices in gang.placement.slots.items():
            counts = self._ripe.get(name, {})
            if before is not None and indices:
                counts[before] -= len(indices)
                if not counts[before]:
                    del counts[before]
            if ripe is not None and indices:
                counts[ripe] = counts.get(ripe, 0) + len(indices)
            self.changes.append(name)

    def on(self, host: str) -> Iterable[ActiveGang]:
        """Return the gangs with slots on a host."""
        return self._on[host].values() if host in self._on else ()

    def victims(self, host: str, rank: PriorityRank) -> list[ActiveGang]:
        """Return the gangs on a host that a request may preempt now."""
        return [gang for gang in self.on(host) if gang.ripe is not None and self._may_end(gang, rank)]

    def available(self, host: str, rank: PriorityRank) -> int:
        """Return the number of slots on a host that are held by gangs which a request may preempt now."""
        counts = self._ripe.get(host)
        if not counts:
            return 0
        is_slices = self.options.preemption == "slices"
        mine = rank.priority
        return sum(
            slots
            for (priority, level), slots in counts.items()
            if priority > mine or (is_slices and priority == mine and level > rank.level)
        )

    def coming(self, host: str, rank: PriorityRank) -> int:
        """Return the slots on a host that are becoming free, or that preemption could free at some time."""
        return sum(
            len(gang.placement.slots[host])
            for gang in self.on(host)
            if gang.is_ending or (gang.is_preemptible and self._may_end(gang, rank))
        )

    def held_seconds(self, host: str, rank: PriorityRank, now: float) -> float:
        """Return the sum of the seconds for which gangs that a request may never preempt have held slots."""
        stay = (
            gang
            for gang in self.on(host)
            if not (gang.is_ending or (gang.is_preemptible and self._may_end(gang, rank)))
        )
        return sum(now - gang.held_from for gang in stay)

    def _may_end(self, gang: ActiveGang, rank: PriorityRank) -> bool:
        if gang.priority != rank.priority:
            return gang.priority > rank.priority and self.options.preemption != "off"
        return may_interrupt(rank, gang.rank, self.options)


class Reach:
    """Slots per host that are free or held by gangs which one rank may preempt now.

    Updated from the log of changed hosts, so that a pass pays only for changes.
    """

    def __init__(self, free_slots: FreeSlots, gangs: RunningGangs, rank: PriorityRank) -> None:
        self.free_slots = free_slots
        self.gangs = gangs
        self.rank = rank
        self.of: dict[str, int] = {}
        #: Number of slots -> hosts on which that many are available.
        self.hosts: dict[int, set[str]] = {}
        #: Number of slots -> hosts of that size on which all of them are available.
        self.whole: dict[int, set[str]] = {}
        for name in free_slots.free:
            self._set(name)
        self._seen = len(free_slots.changes)

    def refresh(self) -> None:
        """Update the hosts that have changed."""
        changes = self.free_slots.changes
        if len(changes) > self._seen:
            for name in set(changes[self._seen :]):
                if name in self.of:
                    self._set(name)
            self._seen = len(changes)

    def _set(self, name: str) -> None:
        now = self.free_slots.free[name] + self.gangs.available(name, self.rank)
        before = self.of.get(name, -1)
        if now == before:
            return
        size = self.free_slots.size[name]
        self.of[name] = now
        if before >= 0:
            self.hosts[before].discard(name)
        self.hosts.setdefault(now, set()).add(name)
        if now == size:
            self.whole.setdefault(size, set()).add(name)
        elif before == size:
            self.whole[size].discard(name)

    def some_host(self, slots: int, banned: Set[str]) -> bool:
        """Return whether a host has at least that many available slots."""
        return any(not names <= banned for count, names in self.hosts.items() if count >= slots)

    def hosts_with(self, slots: int, banned: Set[str]) -> list[str]:
        """Return the hosts with at least that many available slots."""
        return [name for count, names in self.hosts.items() if count >= slots for name in names if name not in banned]

    def whole_sizes(self, banned: Set[str]) -> dict[int, int]:
        """Return the number of hosts of each size that are available as a whole."""
        return {size: len(names - banned if banned else names) for size, names in self.whole.items() if size}
