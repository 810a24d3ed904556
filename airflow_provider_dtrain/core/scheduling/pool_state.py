"""State of one pool's queue, changed by events. ``run_pass`` and the simulator use it.

Times are seconds on the caller's clock. Nothing here reads a clock or draws a number.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from airflow_provider_dtrain.core.scheduling.aging import Late, Protection
from airflow_provider_dtrain.core.scheduling.free_slots import FreeSlots, joined
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.scheduling.priority_tiers import (
    EPSILON,
    PROTECTED,
    PriorityRank,
    late_steps,
    level_of,
    min_run_s,
    next_step_s,
    wait_limit_s,
)
from airflow_provider_dtrain.core.scheduling.queue import (
    GroupShares,
    RequestShape,
    ShareGroup,
    WaitingQueue,
    WaitingRequest,
)
from airflow_provider_dtrain.core.scheduling.reservations import is_sensible
from airflow_provider_dtrain.core.scheduling.running_gangs import ActiveGang, Reach, RunningGangs, gang_of
from airflow_provider_dtrain.core.scheduling.unschedulable import could_ever

#: Maximum number of cached indexes by rank, and of host changes that are logged for them.
MOST_REACHES = 200
MOST_CHANGES = 100_000


class PoolState:
    """Hosts, running gangs and waiting requests of one pool.

    :param hosts: all registered hosts, whatever their state; ``held`` contains the slots of ``running``
    :param options: the pool's options for placement and order
    :param running: every gang that holds slots, counters up to ``now``
    :param now: current time on the caller's clock
    """

    def __init__(
        self, hosts: Iterable[Host], options: PoolOptions, running: Iterable[RunningGang] = (), now: float = 0.0
    ) -> None:
        self.options = options
        self.now = now
        self.free_slots = FreeSlots(hosts)
        self.gangs = RunningGangs(options, self.free_slots.changes)
        self.shares = GroupShares()
        self.queue = WaitingQueue(self.shares, options)
        self.waiting: dict[str, WaitingRequest] = {}
        #: Requests that can never start in this pool. Passes ignore them.
        self.never: dict[str, WaitingRequest] = {}
        #: (host, slot) -> id of the request that claims it.
        self.claimed: dict[tuple[str, int], str] = {}
        #: Request id -> request with reserved hosts.
        self.holders: dict[str, WaitingRequest] = {}
        self.largest_host = max(self.free_slots.size.values(), default=0)
        self.protection = Protection(sum(self.free_slots.size.values()), options)
        #: Group -> its waiting requests that have a cap.
        self._with_cap: dict[str, dict[str, WaitingRequest]] = {}
        #: Priority, slots, closed hosts, first protected request and reserved hosts for which no gangs could be moved
        #: -> number of changes of hosts by then.
        self.unmovable: dict[tuple[int, int, frozenset[str], str | None, frozenset[str]], int] = {}
        self._possible: dict[tuple[int, bool], bool] = {}
        self._timers: list[tuple[float, int, WaitingRequest | ActiveGang]] = []
        self._timer_count = 0
        self._reaches: dict[tuple[int, int], Reach] = {}
        for gang in sorted(running, key=lambda gang: gang.request_id):
            self._start(gang_of(gang, now, options))

    # Events of the pool

    def submit(self, request: GangRequest) -> None:
        """Enqueue a request with its counters up to now.

        It keeps its claim or its reserved hosts if it can still use them.
        """
        shape = RequestShape(request.slots, request.is_single_host, request.excluded_hosts)
        share_group = ShareGroup(request.group, request.weight, request.max_slots, request.crowd, request.max_gangs)
        level = self._level(request, request.slots, request.held_s)
        waiter = WaitingRequest(request, shape, share_group, level, request.waited_s, self.now)
        if not self._is_possible(request):
            waiter.is_eligible = False
            self.never[request.request_id] = waiter
            return
        self.waiting[request.request_id] = waiter
        if share_group.has_cap:
            self._with_cap.setdefault(share_group.group, {})[request.request_id] = waiter
            self.shares.changed.add(share_group.group)
        self._count_wait(waiter)
        self._restore(waiter)
        self.queue.add(waiter)

    def withdraw(self, request_id: str) -> None:
        """Remove a waiting request, and free the slots and hosts that were kept for it."""
        if self.never.pop(request_id, None) is None:
            waiter = self._forget(request_id)
            self.protection.drop(waiter.request.priority, request_id)

    def end(self, request_id: str) -> ActiveGang:
        """Remove a gang and return it. Its slots become free, or go to the requests that claimed them."""
        gang = self.gangs.remove(request_id)
        self.protection.drop(gang.priority, request_id)
        self.shares.hold(gang.group, -gang.slots)
        self.shares.count(gang.crowd, -1)
        self.queue.touch(gang.group)
        self._free(gang.placement)
        return gang

    def set_gang(self, request_id: str, *, is_preemptible: bool, cost_s: float = 0.0) -> None:
        """Set whether a running gang can be preempted, and the seconds that a preemption costs it."""
        gang = self.gangs.by_id[request_id]
        gang.is_preemptible = is_preemptible
        gang.cost_s = cost_s
        self._set_gang_level(gang)
        self._set_gang_timers(gang)

    def next_due(self) -> float | None:
        """Return the next time at which a decision may change without an event.

        None when there is no such time, in particular while no request waits.
        """
        if not self.waiting:
            return None
        while self._timers and not self._is_live(self._timers[0][2]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def advance(self, now: float) -> None:
        """Advance the clock, and update the classes of requests and gangs."""
        self.now = now
        while self._timers and self._timers[0][0] <= now + EPSILON:
            entry = heapq.heappop(self._timers)[2]
            if not self._is_live(entry):
                continue
            if isinstance(entry, ActiveGang):
                self._set_gang_level(entry)
            else:
                self._count_wait(entry)
                self._set_level(entry)
        self._settle()

    def begin_pass(self, now: float) -> None:
        """Prepare the state for a pass at this time."""
        self.advance(now)
        self._count_eligible()
        self.drop_senseless()
        self._forget_changes()

    def end_pass(self) -> None:
        """Count the requests that the pass has left eligible."""
        self._count_eligible()

    # Changes of the state by a pass

    def grant(self, waiter: WaitingRequest, placement: Placement) -> None:
        """Turn a waiting request into a running gang."""
        request = self._forget(waiter.request.request_id).request
        self.free_slots.grant(placement)
        held_s = request.held_s
        waited_s = waiter.waited_at(self.now)
        gang = gang_of(
            RunningGang(
                request_id=request.request_id,
                placement=placement,
                owner=request.request_id,
                priority=request.priority,
                sequence=request.sequence,
                group=request.group,
                weight=request.weight,
                crowd=request.crowd,
                held_s=held_s,
                waited_s=waited_s,
                is_preemptible=request.is_preemptible,
                ends_in_s=request.max_runtime_s,
            ),
            self.now,
            self.options,
        )
        self._start(gang)

    def order(self, waiter: WaitingRequest, victims: Sequence[ActiveGang], placement: Placement) -> None:
        """Record a claim, and mark its victims as ending."""
        self.queue.remove(waiter)
        self._unreserve(waiter)
        for gang in victims:
            gang.is_ending = True
            self.gangs.update(gang, gang.level, self.now)
        self._claim(waiter, placement)
        self.queue.add(waiter)
        self.queue.touch(waiter.share_group.group)

    def reserve(self, waiter: WaitingRequest, hosts: tuple[str, ...]) -> None:
        """Reserve hosts for a request. A request that had reserved one of them loses its whole reservation."""
        for holder in [other for other in self.holders.values() if set(other.reserved) & set(hosts)]:
            self.release_reservation(holder)
        self.queue.remove(waiter)
        waiter.reserved = hosts
        self.holders[waiter.request.request_id] = waiter
        self.queue.add(waiter)

    def release_reservation(self, waiter: WaitingRequest) -> None:
        """Release the reserved hosts of a request."""
        self.queue.remove(waiter)
        self._unreserve(waiter)
        self.queue.add(waiter)

    def reach(self, rank: PriorityRank) -> Reach:
        """Return the up-to-date index of slots that a request of a rank can get on each host."""
        by_level = self.options.preemption == "slices"
        key = 0 if self.options.preemption == "off" else rank.priority, rank.level if by_level else 0
        if key not in self._reaches:
            if len(self._reaches) >= MOST_REACHES:
                self._reaches.clear()
            self._reaches[key] = Reach(self.free_slots, self.gangs, rank)
        reach = self._reaches[key]
        reach.refresh()
        return reach

    def _forget_changes(self) -> None:
        """Limit the log of changed hosts. When it is cleared, indexes are rebuilt."""
        if len(self.unmovable) > MOST_REACHES:
            self.unmovable.clear()
        if len(self.free_slots.changes) > MOST_CHANGES:
            self.free_slots.changes.clear()
            self.unmovable.clear()
            self._reaches.clear()

    def is_first_protected(self, waiter: WaitingRequest) -> bool:
        """Return whether a request is protected and the first one of its priority that waits."""
        if waiter.level > PROTECTED:
            return False
        entries = self.protection.protectable(waiter.request.priority)
        first = next((request_id for request_id in entries if request_id in self.waiting), None)
        return first == waiter.request.request_id

    def drop_senseless(self) -> bool:
        """Drop claims and reservations of requests whose group is at a cap, and return whether there were any."""
        special = self.queue.special.values()
        capped = [waiter for waiter in special if waiter.keeps_hosts and self.shares.is_capped(waiter)]
        for waiter in capped:
            self.queue.remove(waiter)
            self._unreserve(waiter)
            self._unclaim(waiter)
            self.queue.add(waiter)
            self.queue.touch(waiter.share_group.group)
        return bool(capped)

    # Internals

    def _is_possible(self, request: GangRequest) -> bool:
        shape = (request.slots, request.is_single_host)
        if shape not in self._possible:
            self._possible[shape] = could_ever(self.free_slots, request, self.options)
        return self._possible[shape]

    def _start(self, gang: ActiveGang) -> None:
        self.gangs.add(gang, self.now)
        self.shares.hold(gang.group, gang.slots)
        self.shares.count(gang.crowd, 1)
        self.queue.touch(gang.group)
        self._note_late(gang, gang.slots, gang.waited_s)
        self._set_gang_level(gang)
        self._set_gang_timers(gang)

    def _forget(self, request_id: str) -> WaitingRequest:
        waiter = self.waiting.pop(request_id)
        if waiter.share_group.has_cap:
            del self._with_cap[waiter.share_group.group][request_id]
        self.queue.remove(waiter)
        self._unreserve(waiter)
        self._unclaim(waiter)
        return waiter

    def _restore(self, waiter: WaitingRequest) -> None:
        request = waiter.request
        if request.claim is not None and self._is_claim_sensible(request, request.claim):
            self._claim(waiter, request.claim)
        elif is_sensible(self.free_slots, request, request.reserved_hosts, self.options):
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
        """Return whether every slot of a claim is free, or held by a gang that is ending."""
        for name, indices in claim.slots.items():
            host = self.free_slots.hosts.get(name)
            if host is None or name not in self.free_slots.free:
                return False
            if not host.enabled.difference(host.blocked).issuperset(indices):
                return False
            for gang in self.gangs.on(name):
                if not gang.is_ending and not set(gang.placement.slots[name]).isdisjoint(indices):
                    return False
        return True

    def _claim(self, waiter: WaitingRequest, placement: Placement) -> None:
        waiter.claim = placement
        waiter.kept = self.free_slots.keep(placement)
        self.shares.claim(waiter.share_group.group, placement.size)
        self.shares.count(waiter.share_group.crowd, 1)
        for name, indices in placement.slots.items():
            self.claimed.update(dict.fromkeys(((name, index) for index in indices), waiter.request.request_id))

    def _unclaim(self, waiter: WaitingRequest) -> None:
        if waiter.claim is None:
            return
        for name, indices in waiter.claim.slots.items():
            for index in indices:
                self.claimed.pop((name, index), None)
        self.free_slots.unkeep(waiter.kept)
        self.shares.claim(waiter.share_group.group, -waiter.claim.size)
        self.shares.count(waiter.share_group.crowd, -1)
        self.queue.touch(waiter.share_group.group)
        waiter.claim = None
        waiter.kept = Placement({})

    def _unreserve(self, waiter: WaitingRequest) -> None:
        waiter.reserved = ()
        self.holders.pop(waiter.request.request_id, None)

    def _free(self, placement: Placement) -> None:
        """Return slots to the free ones, or to the requests that claimed them."""
        self.free_slots.give(placement)
        for name, indices in placement.slots.items():
            for request_id in sorted({self.claimed[name, i] for i in indices if (name, i) in self.claimed}):
                waiter = self.waiting[request_id]
                assert waiter.claim is not None
                more = self.free_slots.keep(Placement({name: waiter.claim.slots[name]}))
                waiter.kept = joined(waiter.kept, more)

    def _count_eligible(self) -> None:
        """Stop the waiting time of requests at a cap, and drop their protection.

        Their wait is not caused by the pool.
        """
        for waiter in [one for group in sorted(self.shares.changed) for one in self._with_cap.get(group, {}).values()]:
            is_eligible = not self.shares.is_capped(waiter)
            if is_eligible != waiter.is_eligible:
                waiter.waited_s = waiter.waited_at(self.now)
                waiter.since = self.now
                waiter.is_eligible = is_eligible
                self._count_overdue(waiter)
        self.shares.changed.clear()
        self._settle()

    def _count_overdue(self, waiter: WaitingRequest) -> None:
        if waiter.is_eligible:
            self._count_wait(waiter)
        else:
            self.protection.drop(waiter.request.priority, waiter.request.request_id)

    def _count_wait(self, waiter: WaitingRequest) -> None:
        """Note the wait of an eligible request, and set a timer for its next step."""
        slots = waiter.request.slots
        waited_s = waiter.waited_at(self.now)
        self._note_late(waiter.request, slots, waited_s)
        self._set_timer(self.now + next_step_s(waited_s, self._limit_s(slots), self.options), waiter)

    def _note_late(self, of: GangRequest | ActiveGang, slots: int, waited_s: float) -> None:
        steps = late_steps(waited_s, self._limit_s(slots), self.options)
        if steps is not None:
            self.protection.note(of.priority, Late(-steps, -slots, of.sequence, of.request_id))

    def _limit_s(self, slots: int) -> float:
        return wait_limit_s(slots, self.largest_host, self.options)

    def wait_left_s(self, waiter: WaitingRequest) -> float:
        """Return the seconds after which a waiting request may be protected."""
        return self._limit_s(waiter.request.slots) - waiter.waited_at(self.now)

    # Classes and time

    def _settle(self) -> None:
        """Update the classes of requests and gangs that became protected, or are protected no longer."""
        for request_id in self.protection.settle():
            if request_id in self.waiting:
                self._set_level(self.waiting[request_id])
            elif request_id in self.gangs.by_id:
                self._set_gang_level(self.gangs.by_id[request_id])

    def _level(self, of: GangRequest | ActiveGang, slots: int, held_s: float) -> int:
        return level_of(slots, held_s, self.protection.level(of.priority, of.request_id), self.options)

    def _set_level(self, waiter: WaitingRequest) -> None:
        request = waiter.request
        level = self._level(request, request.slots, request.held_s)
        if level != waiter.level:
            self.queue.remove(waiter)
            waiter.level = level
            self.queue.add(waiter)

    def _set_gang_level(self, gang: ActiveGang) -> None:
        level = self._level(gang, gang.slots, self.now - gang.held_from)
        self.gangs.update(gang, level, self.now)

    def _set_gang_timers(self, gang: ActiveGang) -> None:
        options = self.options
        moments = []
        if options.preemption == "slices":
            slots = max(1, gang.slots)
            moments += [gang.held_from + options.fresh_s / slots, gang.held_from + options.young_s / slots]
        if options.preemption != "off" and gang.is_preemptible and not gang.is_ending:
            moments.append(gang.started + min_run_s(gang.cost_s, options))
        if gang.ends_at is not None:
            moments.append(gang.ends_at)
        for moment in moments:
            if moment > self.now + EPSILON:
                self._set_timer(moment, gang)

    def _set_timer(self, moment: float, entry: WaitingRequest | ActiveGang) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (moment, self._timer_count, entry))

    def _is_live(self, entry: WaitingRequest | ActiveGang) -> bool:
        if isinstance(entry, ActiveGang):
            return self.gangs.by_id.get(entry.request_id) is entry
        return entry.is_eligible and self.waiting.get(entry.request.request_id) is entry
