"""Waiting requests of one pool, grouped so that a pass considers only the first of each kind.

The requests of a lane are equal in everything that decides whether they can start: when the first cannot start,
none can. Inside a lane, requests are kept by the group whose share of the pool orders them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_dtrain.core.scheduling.model import GangRequest, Placement, PoolOptions
from airflow_provider_dtrain.core.scheduling.priority_tiers import PROTECTED, PriorityRank, order_in_class


class RequestShape(NamedTuple):
    """Constraints, besides free slots, on the placement of a request."""

    slots: int
    is_single_host: bool
    excluded_hosts: frozenset[str]


class RequestKind(NamedTuple):
    """Fields that all requests of a lane have in common."""

    priority: int
    level: int
    shape: RequestShape
    is_preemptible: bool
    has_max_runtime: bool


class ShareGroup(NamedTuple):
    """Group, with the weight and the caps under which its requests were submitted."""

    group: str
    weight: float
    max_slots: int | None
    crowd: str = ""
    max_gangs: int | None = None

    @property
    def has_cap(self) -> bool:
        """Return whether a cap may keep its requests waiting."""
        return self.max_slots is not None or self.max_gangs is not None


class QueueKey(NamedTuple):
    """Position of a request in the order of a pass."""

    priority: int
    level: int
    share: float
    order: float
    sequence: int
    request_id: str


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """Waiting request. Its counters are stored as times, so that they stay valid while time passes."""

    request: GangRequest
    shape: RequestShape
    share_group: ShareGroup
    level: int
    #: Seconds that it waited up to ``since``.
    waited_s: float
    since: float
    #: Its waiting time counts: the group is below its cap, and the shape fits the pool.
    is_eligible: bool = True
    claim: Placement | None = None
    #: Slots of the claim that are already free. No other request is granted them.
    kept: Placement = field(default_factory=lambda: Placement({}))
    #: Hosts that are reserved for it.
    reserved: tuple[str, ...] = ()

    @property
    def rank(self) -> PriorityRank:
        """Rank that decides which gangs it may preempt."""
        return PriorityRank(self.request.priority, self.level)

    @property
    def kind(self) -> RequestKind:
        """Kind of the lane that it belongs to."""
        request = self.request
        has_max_runtime = request.max_runtime_s is not None
        return RequestKind(request.priority, self.level, self.shape, request.is_preemptible, has_max_runtime)

    @property
    def is_special(self) -> bool:
        """Return whether a pass considers it individually: it has a claim, reserved hosts or no follower."""
        return self.keeps_hosts or not self.request.is_followed

    @property
    def keeps_hosts(self) -> bool:
        """Return whether slots or hosts are kept for it: a claim or a reservation."""
        return self.claim is not None or bool(self.reserved)

    def order(self, options: PoolOptions) -> float:
        """Return its sort key inside its class. Constant while it waits in this class."""
        return order_in_class(self.shape.slots, self.request.held_s, self.level, options)

    def waited_at(self, now: float) -> float:
        """Return the seconds that it was eligible and held no slots."""
        return self.waited_s + (now - self.since if self.is_eligible else 0.0)


class GroupShares:
    """Slots that each group holds, and slots that are claimed for it."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.claimed: dict[str, int] = {}
        #: Crowd -> number of its gangs that hold slots or have claimed them.
        self.gangs: dict[str, int] = {}
        #: Groups whose numbers changed since the end of the last pass.
        self.changed: set[str] = set()

    def hold(self, group: str, slots: int) -> None:
        """Add slots that a group received, or released if negative."""
        self.held[group] = self.held.get(group, 0) + slots
        self.changed.add(group)

    def claim(self, group: str, slots: int) -> None:
        """Add slots that are claimed for a group, or no longer claimed if negative."""
        self.claimed[group] = self.claimed.get(group, 0) + slots
        self.changed.add(group)

    def count(self, crowd: str, gangs: int) -> None:
        """Add gangs of a crowd that hold slots or have claimed them, or subtract them if negative."""
        if crowd:
            self.gangs[crowd] = self.gangs.get(crowd, 0) + gangs

    def of(self, share_group: ShareGroup, level: int) -> float:
        """Return the sort key of a party's requests inside a class: slots held, divided by weight."""
        return 0.0 if level <= PROTECTED else self.held.get(share_group.group, 0) / share_group.weight

    def in_use(self, waiter: WaitingRequest) -> int:
        """Return the slots that the cap of a waiting request counts, without its own claim."""
        group = waiter.share_group.group
        own = waiter.claim.size if waiter.claim is not None else 0
        return self.held.get(group, 0) + self.claimed.get(group, 0) - own

    def gangs_beside(self, waiter: WaitingRequest) -> int:
        """Return the gangs that the cap of a waiting request's crowd counts, without its own claim."""
        return self.gangs.get(waiter.share_group.crowd, 0) - (waiter.claim is not None)

    def is_crowded(self, waiter: WaitingRequest) -> bool:
        """Return whether the crowd has reached its maximum number of gangs."""
        most = waiter.share_group.max_gangs
        return most is not None and self.gangs_beside(waiter) >= most

    def is_capped(self, waiter: WaitingRequest) -> bool:
        """Return whether the group would exceed one of its caps."""
        cap = waiter.share_group.max_slots
        is_full = cap is not None and self.in_use(waiter) + waiter.shape.slots > cap
        return is_full or self.is_crowded(waiter)


class Lane:
    """Requests of one kind, in the order of :class:`QueueKey`."""

    def __init__(self, kind: RequestKind, shares: GroupShares, options: PoolOptions) -> None:
        self.kind = kind
        self.shares = shares
        self.options = options
        self.members: dict[str, WaitingRequest] = {}
        self._queues: dict[ShareGroup, list[tuple[float, int, str]]] = {}
        self._heads: list[tuple[float, float, int, str, ShareGroup]] = []
        self._dirty: set[ShareGroup] = set()

    def add(self, waiter: WaitingRequest) -> None:
        """Add a request."""
        self.members[waiter.request.request_id] = waiter
        heapq.heappush(self._queues.setdefault(waiter.share_group, []), self._entry(waiter))
        self._dirty.add(waiter.share_group)

    def remove(self, waiter: WaitingRequest) -> None:
        """Remove a request."""
        del self.members[waiter.request.request_id]
        self._dirty.add(waiter.share_group)

    def touch(self, share_group: ShareGroup) -> None:
        """Record that the share of a party or its room under the cap has changed."""
        if share_group in self._queues:
            self._dirty.add(share_group)

    def first(self) -> WaitingRequest | None:
        """Return the first request whose party is below its cap."""
        self._refresh()
        while self._heads:
            *place, share_group = self._heads[0]
            waiter = self._front(share_group)
            is_current = waiter is not None and tuple(place) == self._place(waiter)
            if waiter is not None and is_current and not self.shares.is_capped(waiter):
                return waiter
            heapq.heappop(self._heads)
        return None

    def _entry(self, waiter: WaitingRequest) -> tuple[float, int, str]:
        return waiter.order(self.options), waiter.request.sequence, waiter.request.request_id

    def _place(self, waiter: WaitingRequest) -> tuple[float, float, int, str]:
        return self.shares.of(waiter.share_group, self.kind.level), *self._entry(waiter)

    def _front(self, share_group: ShareGroup) -> WaitingRequest | None:
        queue = self._queues.get(share_group)
        while queue:
            waiter = self.members.get(queue[0][-1])
            # An entry of an earlier wait may be left, from before it used more slot-hours.
            if waiter is not None and waiter.share_group == share_group and queue[0] == self._entry(waiter):
                return waiter
            heapq.heappop(queue)
        self._queues.pop(share_group, None)
        return None

    def _refresh(self) -> None:
        if len(self._heads) > 4 * len(self._queues) + 16:
            self._heads.clear()
            self._dirty.update(self._queues)
        for share_group in self._dirty:
            waiter = self._front(share_group)
            if waiter is not None:
                heapq.heappush(self._heads, (*self._place(waiter), share_group))
        self._dirty.clear()


class WaitingQueue:
    """All lanes of a pool, and the requests that a pass considers individually."""

    def __init__(self, shares: GroupShares, options: PoolOptions) -> None:
        self.shares = shares
        self.options = options
        self.by_kind: dict[RequestKind, Lane] = {}
        #: Requests with a claim or reserved hosts, by id.
        self.special: dict[str, WaitingRequest] = {}
        self._lanes_of: dict[str, dict[tuple[RequestKind, ShareGroup], int]] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self.by_kind.values())

    def add(self, waiter: WaitingRequest) -> None:
        """Add a request to its lane, or to ``special`` if a pass considers it individually."""
        if waiter.is_special:
            self.special[waiter.request.request_id] = waiter
            return
        kind = waiter.kind
        if kind not in self.by_kind:
            self.by_kind[kind] = Lane(kind, self.shares, self.options)
        self.by_kind[kind].add(waiter)
        counts = self._lanes_of.setdefault(waiter.share_group.group, {})
        counts[kind, waiter.share_group] = counts.get((kind, waiter.share_group), 0) + 1

    def remove(self, waiter: WaitingRequest) -> None:
        """Remove a request from its lane or from ``special``.

        Call it before the class, the claim or the reserved hosts of the request change.
        """
        if self.special.pop(waiter.request.request_id, None) is not None:
            return
        kind = waiter.kind
        lane = self.by_kind[kind]
        lane.remove(waiter)
        if not lane.members:
            del self.by_kind[kind]
        counts = self._lanes_of[waiter.share_group.group]
        counts[kind, waiter.share_group] -= 1
        if not counts[kind, waiter.share_group]:
            del counts[kind, waiter.share_group]

    def touch(self, group: str) -> None:
        """Record that the share of a group or its room under the cap has changed."""
        for kind, share_group in self._lanes_of.get(group, ()):
            self.by_kind[kind].touch(share_group)

    def key(self, waiter: WaitingRequest) -> QueueKey:
        """Return the position of a request in the order of a pass."""
        request = waiter.request
        share = self.shares.of(waiter.share_group, waiter.level)
        order = waiter.order(self.options)
        return QueueKey(request.priority, waiter.level, share, order, request.sequence, request.request_id)
