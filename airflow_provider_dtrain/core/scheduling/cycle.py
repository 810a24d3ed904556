"""One pass over the state of a pool: grants, claims and reservations in the order of the requests."""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.scheduling.layouts import whole_layouts
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.core.scheduling.moves import MoveSearch
from airflow_provider_dtrain.core.scheduling.placement import find
from airflow_provider_dtrain.core.scheduling.preemption import PreemptionChoice, PreemptionSearch
from airflow_provider_dtrain.core.scheduling.priority_tiers import EPSILON, may_interrupt
from airflow_provider_dtrain.core.scheduling.queue import QueueKey, RequestKind, RequestShape, WaitingRequest
from airflow_provider_dtrain.core.scheduling.reservations import ReservationSearch, due, is_for_good
from airflow_provider_dtrain.core.scheduling.unschedulable import NO_HOSTS

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.scheduling.pool_state import PoolState


@dataclass(frozen=True)
class Reservation:
    """Reservation of hosts, with the facts that decide which other requests may start on them."""

    holder: WaitingRequest
    key: QueueKey
    #: Gangs that the holder may never preempt are in its way.
    is_for_good: bool
    #: Seconds until every gang there has ended; None: not known.
    due_s: float | None


@dataclass(frozen=True)
class PassOutcome:
    """Result of one pass."""

    #: (request id, its slots) in the order in which they were granted.
    grants: tuple[tuple[str, Placement], ...]
    #: (request id of the gang to stop now, request id of the claimant).
    preemptions: tuple[tuple[str, str], ...]


def step(state: PoolState, now: float) -> PassOutcome:
    """Run one pass: grant, claim and reserve everything that is possible at this time.

    Granted requests run from then on.
    """
    state.begin_pass(now)
    grants, preemptions = SchedulingPass(state).run()
    state.end_pass()
    return PassOutcome(tuple(grants), tuple(preemptions))


class SchedulingPass:
    """State of one pass: the requests that it has yet to consider.

    Within a pass, slots are only taken, and the order goes from requests that may preempt more gangs to requests
    that may preempt fewer. So when the first request of a lane cannot start, none of the lane can, and the pass
    skips the lane.
    """

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self.grants: list[tuple[str, Placement]] = []
        self.preemptions: list[tuple[str, str]] = []
        #: First requests of lanes (0, their kind) and single requests (1, None).
        self._todo: list[tuple[QueueKey, int, RequestKind | None]] = []
        self._unreservable: set[RequestShape] = set()
        self._reservations: list[Reservation] | None = None
        self._is_stale = True

    def run(self) -> tuple[Sequence[tuple[str, Placement]], Sequence[tuple[str, str]]]:
        """Return the grants and the preemptions, (gang, claimant), of one pass over the whole queue."""
        while self._is_stale:
            self._begin()
            while self._todo and not self._is_stale:
                key, _, kind = heapq.heappop(self._todo)
                self._next(key, kind)
            # Slots that are kept for a request whose group has reached its cap may serve other requests.
            self._is_stale = self.state.drop_senseless() or self._is_stale
        return self.grants, self.preemptions

    def _begin(self) -> None:
        self._is_stale = False
        self._reservations = None
        self._unreservable.clear()
        self._todo.clear()
        for kind in self.state.queue.by_kind:
            self._push_lane(kind)
        for waiter in self.state.queue.special.values():
            heapq.heappush(self._todo, (self.state.queue.key(waiter), 1, None))

    def _push_lane(self, kind: RequestKind) -> None:
        lane = self.state.queue.by_kind.get(kind)
        first = lane.first() if lane is not None else None
        if first is not None:
            heapq.heappush(self._todo, (self.state.queue.key(first), 0, kind))

    def _next(self, key: QueueKey, kind: RequestKind | None) -> None:
        if kind is None:
            self._next_by_itself(key)
            return
        lane = self.state.queue.by_kind.get(kind)
        waiter = lane.first() if lane is not None else None
        if waiter is None:
            return
        # A grant to its group after the lane was pushed moves the request back.
        if self.state.queue.key(waiter) != key or self._consider(waiter):
            if not self._is_stale:
                self._push_lane(kind)
        elif kind.has_max_runtime:
            self._push_short(kind)

    def _next_by_itself(self, key: QueueKey) -> None:
        waiter = self.state.waiting.get(key.request_id)
        if waiter is None or self.state.shares.is_capped(waiter):
            return
        now = self.state.queue.key(waiter)
        if now == key:
            self._consider(waiter)
        else:
            heapq.heappush(self._todo, (now, 1, None))

    def _push_short(self, kind: RequestKind) -> None:
        """Push the requests behind a lane's first one that end before a reservation is due."""
        latest = max((held.due_s for held in self.held() if held.due_s is not None), default=-1.0)
        for waiter in self.state.queue.by_kind[kind].members.values():
            runtime = waiter.request.max_runtime_s
            if runtime is not None and runtime <= latest + EPSILON:
                heapq.heappush(self._todo, (self.state.queue.key(waiter), 1, None))

    # One request

    def _consider(self, waiter: WaitingRequest) -> bool:
        """Grant, claim or reserve. Return False when that is impossible for this request and all of its lane."""
        if not waiter.request.is_followed:
            return True
        if waiter.claim is not None:
            if waiter.claim.size == waiter.kept.size:
                self._grant(waiter, waiter.claim)
            return True
        banned = waiter.shape.excluded_hosts | self.closed(waiter)
        if waiter.shape.slots == 0 or self._is_in_reach(waiter, banned):
            placement = find(self.state.free_slots, waiter.request, self.state.options, banned)
            if placement is not None:
                self._grant(waiter, placement)
                return True
            if self._interrupt(waiter, banned):
                return True
        return self._move(waiter, banned) or bool(waiter.reserved) or self._reserve(waiter)

    def _grant(self, waiter: WaitingRequest, placement: Placement) -> None:
        self._reservations = None
        self.grants.append((waiter.request.request_id, placement))
        self.state.grant(waiter, placement)

    def _is_in_reach(self, waiter: WaitingRequest, banned: Set[str]) -> bool:
        """Return whether enough slots are free or held by gangs that the request may preempt now."""
        slots, is_single_host, _ = waiter.shape
        reach = self.state.reach(waiter.rank)
        if reach.some_host(slots, banned):
            return True
        if is_single_host:
            return False
        return any(whole_layouts(slots, reach.whole_sizes(banned), self.state.options.allow_heterogeneous))

    def _interrupt(self, waiter: WaitingRequest, banned: Set[str]) -> bool:
        state = self.state
        reach = state.reach(waiter.rank)
        choice = PreemptionSearch(
            state.free_slots, state.gangs, reach, waiter.request, waiter.rank, state.options, state.now, banned
        ).run()
        return self._order(waiter, choice)

    def _move(self, waiter: WaitingRequest, banned: frozenset[str]) -> bool:
        """Stop gangs that continue on other hosts, if that makes room. Only where classes preempt each other."""
        state = self.state
        slots = waiter.shape.slots
        if state.options.preemption != "slices" or state.free_slots.total() < slots:
            return False
        first = next(iter(state.protection.protectable(waiter.request.priority)), None)
        reserved = frozenset(host for holder in state.holders.values() for host in holder.reserved)
        key = (waiter.request.priority, slots, banned, first, reserved)
        if state.unmovable.get(key) == len(state.free_slots.changes):
            return False
        choice = MoveSearch(
            state.free_slots,
            state.gangs,
            state.reach(waiter.rank),
            waiter.request,
            waiter.rank,
            state.options,
            state.now,
            banned,
            first,
            reserved,
        ).run()
        if choice is None:
            state.unmovable[key] = len(state.free_slots.changes)
        return self._order(waiter, choice)

    def _order(self, waiter: WaitingRequest, choice: PreemptionChoice | None) -> bool:
        if choice is None:
            return False
        self._reservations = None
        self.preemptions += [(gang.request_id, waiter.request.request_id) for gang in choice.victims]
        self.state.order(waiter, choice.victims, choice.placement)
        return True

    def _reserve(self, waiter: WaitingRequest) -> bool:
        """Reserve hosts for a request if one more reservation is allowed, or if it is the first protected one."""
        state = self.state
        is_first = state.is_first_protected(waiter)
        if not is_first and (len(state.holders) >= state.options.reservations or waiter.shape in self._unreservable):
            return False
        mine = state.queue.key(waiter)
        before = [held for held in self.held() if not is_first or held.key < mine]
        banned = waiter.shape.excluded_hosts.union(*(held.holder.reserved for held in before))
        hosts = ReservationSearch(
            state.free_slots, state.gangs, waiter.request, waiter.rank, state.options, state.now, banned
        ).run()
        if not hosts:
            self._unreservable.add(waiter.shape)
            return False
        # A holder that loses its hosts is considered again.
        self._is_stale = any(not set(hosts).isdisjoint(held.holder.reserved) for held in self.held())
        self._reservations = None
        state.reserve(waiter, hosts)
        return True

    # Reserved hosts

    def closed(self, waiter: WaitingRequest) -> frozenset[str]:
        """Return the hosts that are reserved for other requests and closed to this one."""
        if not self.state.holders:
            return NO_HOSTS
        mine = self.state.queue.key(waiter)
        earlier = [held for held in self.held() if held.key < mine and not self._is_open(held, waiter)]
        return frozenset().union(*(held.holder.reserved for held in earlier))

    def _is_open(self, held: Reservation, waiter: WaitingRequest) -> bool:
        """Return whether a request behind the holder may start on its hosts without delaying it for good."""
        request = waiter.request
        options = self.state.options
        runtime_s = request.max_runtime_s
        if runtime_s is not None and held.due_s is not None and runtime_s <= held.due_s + EPSILON:
            return True
        if not (request.is_preemptible and held.is_for_good):
            return False
        in_time = held.due_s is None or options.min_run_s <= held.due_s
        return in_time and may_interrupt(held.holder.rank, waiter.rank, options)

    def held(self) -> list[Reservation]:
        """Return the current reservations."""
        if self._reservations is None:
            self._reservations = [self._reservation(holder) for holder in self.state.holders.values()]
        return self._reservations

    def _reservation(self, holder: WaitingRequest) -> Reservation:
        free_slots = self.state.free_slots
        gangs = self.state.gangs
        is_stuck = is_for_good(free_slots, gangs, holder.request, holder.rank, holder.reserved)
        due_s = due(free_slots, gangs, holder.reserved, self.state.now)
        return Reservation(holder, self.state.queue.key(holder), is_stuck, due_s)
