"""The queue of one pool as a state that changes by events: what run_pass and the simulator use.

Times are seconds on the caller's clock. Nothing here reads a clock or draws a number.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_dtrain.core.board import Board, joined
from airflow_provider_dtrain.core.classes import EPSILON, PROTECTED, Rank, is_overdue, level_of, min_run_s
from airflow_provider_dtrain.core.gangs import Gang, Gangs, Reach, gang_of
from airflow_provider_dtrain.core.lanes import Lanes, Party, Shape, Shares, Waiter
from airflow_provider_dtrain.core.passing import Pass
from airflow_provider_dtrain.core.protection import Overdue, Protection
from airflow_provider_dtrain.core.reserving import is_sensible
from airflow_provider_dtrain.core.resources import GangRequest, Host, Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.shortage import could_ever

#: Indexes by rank that are kept, and changes of hosts that are remembered for them.
MOST_REACHES = 200
MOST_CHANGES = 100_000


@dataclass(frozen=True)
class Outcome:
    """What one pass did."""

    #: (request id, its slots) in the order in which they were granted.
    grants: tuple[tuple[str, Placement], ...]
    #: (request id of the gang to stop now, request id of the claimant).
    preemptions: tuple[tuple[str, str], ...]


class Scheduler:
    """The hosts, the running gangs and the waiting requests of one pool.

    :param hosts: all registered hosts, whatever their state; ``held`` contains the slots of ``running``
    :param options: how the pool places and orders
    :param running: every gang that holds slots, counters up to ``now``
    :param now: the moment on the caller's clock
    """

    def __init__(
        self, hosts: Iterable[Host], options: PoolOptions, running: Iterable[RunningGang] = (), now: float = 0.0
    ) -> None:
        self.options, self.now = options, now
        self.board = Board(hosts)
        self.gangs = Gangs(options, self.board.changes)
        self.shares = Shares()
        self.lanes = Lanes(self.shares)
        self.waiting: dict[str, Waiter] = {}
        #: Requests that can never start in this pool; nothing looks at them.
        self.never: dict[str, Waiter] = {}
        #: (host, slot) -> the request that it is coming for.
        self.claimed: dict[tuple[str, int], str] = {}
        #: Requests with reserved hosts, by the hosts.
        self.holders: dict[str, Waiter] = {}
        self.protection = Protection(sum(self.board.size.values()), options)
        #: Group -> its waiting requests that have a cap.
        self._with_cap: dict[str, dict[str, Waiter]] = {}
        self._possible: dict[tuple[int, bool], bool] = {}
        self._timers: list[tuple[float, int, Waiter | Gang]] = []
        self._timer_count = 0
        self._reaches: dict[tuple[int, int, int, str], Reach] = {}
        for gang in sorted(running, key=lambda gang: gang.request_id):
            self._start(gang_of(gang, now, options))

    # What happens to the pool

    def submit(self, request: GangRequest) -> None:
        """Let a request wait, its counters up to now. Its claim and reserved hosts stand while they are sensible."""
        shape = Shape(request.slots, request.is_single_host, request.excluded_hosts)
        party = Party(request.group, request.weight, request.max_slots, request.crowd, request.max_gangs)
        level = self._level(request.request_id, request.priority, request.held_s, request.waited_s)
        waiter = Waiter(request, shape, party, level, request.waited_s, self.now)
        if not self._is_possible(request):
            waiter.is_eligible = False
            self.never[request.request_id] = waiter
            return
        self.waiting[request.request_id] = waiter
        if party.has_cap:
            self._with_cap.setdefault(party.group, {})[request.request_id] = waiter
            self.shares.changed.add(party.group)
        if is_overdue(request.waited_s, self.options):
            self.protection.note(request.priority, _entry(request, request.slots))
        else:
            self._set_timer(self.now + self.options.max_wait_s - request.waited_s, waiter)
        self._restore(waiter)
        self.lanes.add(waiter)

    def withdraw(self, request_id: str) -> None:
        """Forget a waiting request; what was kept for it is free."""
        if self.never.pop(request_id, None) is None:
            waiter = self._forget(request_id)
            self.protection.drop(waiter.request.priority, _entry(waiter.request, waiter.request.slots))

    def end(self, request_id: str) -> Gang:
        """Free the slots of a gang that is gone; they go to whoever claimed them. Return the gang."""
        gang = self.gangs.remove(request_id)
        self.protection.drop(gang.priority, _entry(gang, gang.slots))
        self.shares.hold(gang.group, -gang.slots)
        self.shares.count(gang.crowd, -1)
        self.lanes.touch(gang.group)
        self._free(gang.placement)
        return gang

    def set_gang(self, request_id: str, *, is_preemptible: bool, cost_s: float = 0.0) -> None:
        """Say that a running gang can be interrupted, and what that costs it."""
        gang = self.gangs.by_id[request_id]
        gang.is_preemptible, gang.cost_s = is_preemptible, cost_s
        self._set_gang_level(gang)
        self._set_gang_timers(gang)

    def next_due(self) -> float | None:
        """Return when time alone may change a decision; None while nothing waits."""
        if not self.waiting:
            return None
        while self._timers and not self._is_live(self._timers[0][2]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def advance(self, now: float) -> None:
        """Let time pass up to a moment: classes are crossed."""
        self.now = now
        while self._timers and self._timers[0][0] <= now + EPSILON:
            entry = heapq.heappop(self._timers)[2]
            if not self._is_live(entry):
                continue
            if isinstance(entry, Gang):
                self._set_gang_level(entry)
            elif is_overdue(entry.waited_at(now), self.options):
                request = entry.request
                self.protection.note(request.priority, _entry(request, request.slots))
                self._set_level(entry)
            elif entry.is_eligible:
                self._set_timer(entry.since + self.options.max_wait_s - entry.waited_s, entry)
        self._settle()

    def step(self, now: float) -> Outcome:
        """Grant, claim and reserve all that may be at a moment; granted requests run from then on."""
        self.advance(now)
        self._count_eligible()
        self.drop_senseless()
        self._forget_changes()
        grants, preemptions = Pass(self).run()
        self._count_eligible()
        return Outcome(tuple(grants), tuple(preemptions))

    # What a pass does to the state

    def grant(self, waiter: Waiter, placement: Placement) -> None:
        """Let a waiting request run."""
        request = self._forget(waiter.request.request_id).request
        self.board.grant(placement)
        held_s, waited_s = request.held_s, waiter.waited_at(self.now)
        gang = gang_of(
            RunningGang(
                request_id=request.request_id, placement=placement, who=request.request_id,
                priority=request.priority, sequence=request.sequence, group=request.group, weight=request.weight,
                crowd=request.crowd, held_s=held_s, waited_s=waited_s, is_preemptible=request.is_preemptible,
                ends_in_s=request.max_runtime_s,
            ), self.now, self.options,
        )  # fmt: skip
        self._start(gang)

    def order(self, waiter: Waiter, victims: Sequence[Gang], placement: Placement) -> None:
        """Write a claim, and let its victims end."""
        self.lanes.remove(waiter)
        self._unreserve(waiter)
        for gang in victims:
            gang.is_ending = True
            self.gangs.update(gang, gang.level, self.now)
        self._claim(waiter, placement)
        self.lanes.add(waiter)
        self.lanes.touch(waiter.party.group)

    def reserve(self, waiter: Waiter, hosts: tuple[str, ...]) -> None:
        """Keep hosts for a request; whoever kept one of them loses all of theirs."""
        for holder in [other for other in self.holders.values() if set(other.reserved) & set(hosts)]:
            self.release_reservation(holder)
        self.lanes.remove(waiter)
        waiter.reserved = hosts
        self.holders[waiter.request.request_id] = waiter
        self.lanes.add(waiter)

    def release_reservation(self, waiter: Waiter) -> None:
        """Keep no hosts for a request any longer."""
        self.lanes.remove(waiter)
        self._unreserve(waiter)
        self.lanes.add(waiter)

    def reach(self, rank: Rank) -> Reach:
        """Return what a request of a rank can have on each host, up to date."""
        by_level, by_age = self.options.preemption == "slices", rank.level == PROTECTED
        key = (
            0 if self.options.preemption == "off" else rank.priority,
            rank.level if by_level else 0,
            rank.sequence if by_level and by_age else 0,
            rank.request_id if by_level and by_age else "",
        )
        if key not in self._reaches:
            if len(self._reaches) >= MOST_REACHES:
                self._reaches.clear()
            self._reaches[key] = Reach(self.board, self.gangs, rank)
        reach = self._reaches[key]
        reach.refresh()
        return reach

    def _forget_changes(self) -> None:
        """Keep the log of changed hosts short: indexes are built anew instead."""
        if len(self.board.changes) > MOST_CHANGES:
            self.board.changes.clear()
            self._reaches.clear()

    def is_oldest_protected(self, waiter: Waiter) -> bool:
        """Return whether a request is protected and the oldest of those in its priority that wait."""
        if waiter.level != PROTECTED:
            return False
        entries = self.protection.overdue(waiter.request.priority)
        oldest = next((entry.request_id for entry in entries if entry.request_id in self.waiting), None)
        return oldest == waiter.request.request_id

    def drop_senseless(self) -> bool:
        """End what is kept for requests whose group is at a cap; return whether there were any."""
        capped = [waiter for waiter in self.lanes.special.values() if self.shares.is_capped(waiter)]
        for waiter in capped:
            self.lanes.remove(waiter)
            self._unreserve(waiter)
            self._unclaim(waiter)
            self.lanes.add(waiter)
            self.lanes.touch(waiter.party.group)
        return bool(capped)

    # Inside

    def _is_possible(self, request: GangRequest) -> bool:
        shape = (request.slots, request.is_single_host)
        if shape not in self._possible:
            self._possible[shape] = could_ever(self.board, request, self.options)
        return self._possible[shape]

    def _start(self, gang: Gang) -> None:
        self.gangs.add(gang, self.now)
        self.shares.hold(gang.group, gang.slots)
        self.shares.count(gang.crowd, 1)
        self.lanes.touch(gang.group)
        if is_overdue(gang.waited_s, self.options):
            self.protection.note(gang.priority, _entry(gang, gang.slots))
        self._set_gang_level(gang)
        self._set_gang_timers(gang)

    def _forget(self, request_id: str) -> Waiter:
        waiter = self.waiting.pop(request_id)
        if waiter.party.has_cap:
            del self._with_cap[waiter.party.group][request_id]
        self.lanes.remove(waiter)
        self._unreserve(waiter)
        self._unclaim(waiter)
        return waiter

    def _restore(self, waiter: Waiter) -> None:
        request = waiter.request
        if request.claim is not None and self._is_claim_sensible(request, request.claim):
            self._claim(waiter, request.claim)
        elif is_sensible(self.board, request, request.reserved_hosts, self.options):
            taken = {host for holder in self.holders.values() for host in holder.reserved}
            if not taken.intersection(request.reserved_hosts):
                waiter.reserved = tuple(sorted(request.reserved_hosts))
                self.holders[request.request_id] = waiter

    def _is_claim_sensible(self, request: GangRequest, claim: Placement) -> bool:
        places = [(name, index) for name, indices in claim.slots.items() for index in indices]
        if claim.size != request.slots or not request.excluded_hosts.isdisjoint(claim.slots):
            return False
        mine = request.request_id
        return all(self.claimed.get(place, mine) == mine for place in places) and self._is_coming(claim)

    def _is_coming(self, claim: Placement) -> bool:
        """Return whether every slot of a claim is free, or held by something that ends."""
        for name, indices in claim.slots.items():
            host = self.board.hosts.get(name)
            if host is None or name not in self.board.free:
                return False
            if not host.enabled.difference(host.blocked).issuperset(indices):
                return False
            for gang in self.gangs.on(name):
                if not gang.is_ending and not set(gang.placement.slots[name]).isdisjoint(indices):
                    return False
        return True

    def _claim(self, waiter: Waiter, placement: Placement) -> None:
        waiter.claim = placement
        waiter.kept = self.board.keep(placement)
        self.shares.claim(waiter.party.group, placement.size)
        self.shares.count(waiter.party.crowd, 1)
        for name, indices in placement.slots.items():
            self.claimed.update(dict.fromkeys(((name, index) for index in indices), waiter.request.request_id))

    def _unclaim(self, waiter: Waiter) -> None:
        if waiter.claim is None:
            return
        for name, indices in waiter.claim.slots.items():
            for index in indices:
                self.claimed.pop((name, index), None)
        self.board.unkeep(waiter.kept)
        self.shares.claim(waiter.party.group, -waiter.claim.size)
        self.shares.count(waiter.party.crowd, -1)
        self.lanes.touch(waiter.party.group)
        waiter.claim, waiter.kept = None, Placement({})

    def _unreserve(self, waiter: Waiter) -> None:
        waiter.reserved = ()
        self.holders.pop(waiter.request.request_id, None)

    def _free(self, placement: Placement) -> None:
        """Give slots back to the board, or to those that claimed them."""
        self.board.give(placement)
        for name, indices in placement.slots.items():
            for request_id in sorted({self.claimed[name, i] for i in indices if (name, i) in self.claimed}):
                waiter = self.waiting[request_id]
                assert waiter.claim is not None
                more = self.board.keep(Placement({name: waiter.claim.slots[name]}))
                waiter.kept = joined(waiter.kept, more)

    def _count_eligible(self) -> None:
        """Let the clocks of requests at a cap stand still; what can start for no reason of the pool protects nobody."""
        for waiter in [one for group in sorted(self.shares.changed) for one in self._with_cap.get(group, {}).values()]:
            is_eligible = not self.shares.is_capped(waiter)
            if is_eligible != waiter.is_eligible:
                waiter.waited_s, waiter.since = waiter.waited_at(self.now), self.now
                waiter.is_eligible = is_eligible
                self._count_overdue(waiter)
        self.shares.changed.clear()
        self._settle()

    def _count_overdue(self, waiter: Waiter) -> None:
        request = waiter.request
        entry = _entry(request, request.slots)
        if not waiter.is_eligible:
            self.protection.drop(request.priority, entry)
        elif is_overdue(waiter.waited_s, self.options):
            self.protection.note(request.priority, entry)
        else:
            self._set_timer(self.now + self.options.max_wait_s - waiter.waited_s, waiter)

    # Classes and time

    def _settle(self) -> None:
        """Bring the classes of those up to date that are protected since, or no longer."""
        for request_id in self.protection.settle():
            if request_id in self.waiting:
                self._set_level(self.waiting[request_id])
            elif request_id in self.gangs.by_id:
                self._set_gang_level(self.gangs.by_id[request_id])

    def _level(self, request_id: str, priority: int, held_s: float, waited_s: float) -> int:
        return PROTECTED if self.protection.covers(priority, request_id) else level_of(held_s, waited_s, self.options)

    def _set_level(self, waiter: Waiter) -> None:
        request = waiter.request
        waited_s = waiter.waited_at(self.now)
        level = self._level(request.request_id, request.priority, request.held_s, waited_s)
        if level != waiter.level:
            self.lanes.remove(waiter)
            waiter.level = level
            self.lanes.add(waiter)

    def _set_gang_level(self, gang: Gang) -> None:
        level = self._level(gang.request_id, gang.priority, self.now - gang.held_from, gang.waited_s)
        self.gangs.update(gang, level, self.now)

    def _set_gang_timers(self, gang: Gang) -> None:
        options, moments = self.options, []
        if options.preemption == "slices":
            moments += [gang.held_from + options.fresh_s, gang.held_from + options.young_s]
        if options.preemption != "off" and gang.is_preemptible and not gang.is_ending:
            moments.append(gang.started + min_run_s(gang.cost_s, options))
        if gang.ends_at is not None:
            moments.append(gang.ends_at)
        for moment in moments:
            if moment > self.now + EPSILON:
                self._set_timer(moment, gang)

    def _set_timer(self, moment: float, entry: Waiter | Gang) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (moment, self._timer_count, entry))

    def _is_live(self, entry: Waiter | Gang) -> bool:
        if isinstance(entry, Gang):
            return self.gangs.by_id.get(entry.request_id) is entry
        return entry.is_eligible and self.waiting.get(entry.request.request_id) is entry


def _entry(of: GangRequest | Gang, slots: int) -> Overdue:
    return Overdue(of.sequence, of.request_id, slots)
