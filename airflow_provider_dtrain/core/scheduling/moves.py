"""Moves: gangs that stop on one host and continue on free slots of others, so that a request fits on their host.

Free slots that are scattered over hosts serve no wide request. A move costs a checkpoint and a restart, but no gang
loses its slots to another: those that stop find room elsewhere when the move is ordered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from airflow_provider_dtrain.core.scheduling.preemption import PreemptionChoice, PreemptionSearch
from airflow_provider_dtrain.core.scheduling.running_gangs import ActiveGang


@dataclass(frozen=True)
class MoveSearch(PreemptionSearch):
    """Search for gangs to move off one host, for a request that found neither free slots nor victims."""

    #: Request whose gang is not moved: the first of the priority in the order of protection.
    first_protected: str | None
    #: Hosts that are reserved for any request.
    reserved: Set[str]

    def run(self) -> PreemptionChoice | None:
        """Return the gangs to move at the least cost, or None when no host can be cleared so."""
        return self._on_one_host() if self.request.slots else None

    def _hosts(self) -> list[str]:
        """Return the hosts that have some, but not enough free slots, and whose other gangs would fit elsewhere."""
        wanted = self.request.slots
        by_free = self.free_slots.by_free
        return [
            name
            for free in by_free
            if 0 < free < wanted
            for name in by_free[free]
            if self.free_slots.size[name] >= wanted and name not in self.banned
        ]

    def _victims(self, name: str) -> list[ActiveGang]:
        return [gang for gang in self.gangs.on(name) if self._may_move(gang, name)]

    def _may_move(self, gang: ActiveGang, name: str) -> bool:
        is_on_one_host = gang.slots == len(gang.placement.slots[name])
        is_ripe = gang.ripe is not None and gang.priority >= self.rank.priority
        return is_on_one_host and is_ripe and gang.request_id != self.first_protected

    def _may_all_stop(self, name: str, ids: Sequence[str]) -> bool:
        """Return whether the gangs fit on free slots of other hosts: the widest first, each where it fits best."""
        rest = Counter({free: len(names) for free, names in self.free_slots.by_free.items()})
        rest.subtract(self.free_slots.free[host] for host in {name, *self._kept()})
        for slots in sorted((self.gangs.by_id[request_id].slots for request_id in ids), reverse=True):
            free = min((free for free, hosts in rest.items() if hosts and free >= slots), default=None)
            if free is None:
                return False
            rest[free] -= 1
            rest[free - slots] += 1
        return True

    def _kept(self) -> Set[str]:
        return (self.banned | self.reserved) & self.free_slots.free.keys()
