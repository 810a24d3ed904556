"""A second, naive implementation of the queue's rules, which examines every request."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from airflow_provider_dtrain.core.scheduling.free_slots import stable_order
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang
from tests.support.naive_layouts import UNEQUAL, Preference, ways


def subsets(items):
    return [chosen for number in range(1, len(items) + 1) for chosen in combinations(items, number)]


class NaiveQueue:
    """One pass, without claims and reservations of earlier passes.

    Victims on whole hosts are exact only if each running gang is on one host.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        requests: Sequence[GangRequest],
        options: PoolOptions,
        running: Sequence[RunningGang],
    ) -> None:
        self.hosts, self.options = {host.name: host for host in hosts}, options
        self.free = {host.name: set(host.free) for host in hosts}
        self.running = {gang.request_id: gang for gang in running}
        self.starting: dict[str, tuple[GangRequest, Placement]] = {}
        self.held: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        for gang in running:
            self.held[gang.group] += gang.placement.size
            self.started[gang.crowd] += 1
        self.waiting = {request.request_id: request for request in requests if self.is_possible(request)}
        self.claims: dict[str, Placement] = {}
        able = [request for request in self.waiting.values() if not self.is_capped(request)]
        #: Priority -> the first request in the order of protection.
        self.first: dict[int, str] = {}
        self.protected: dict[str, int] = {}
        self.overdue: set[str] = set()
        self.find_late(able, list(running))
        self.reserved: dict[str, tuple[str, ...]] = {}
        self.ending = {gang.request_id for gang in running if gang.is_ending}
        self.grants: list[tuple[str, Placement]] = []
        self.preemptions: list[tuple[str, str]] = []

    def is_possible(self, request):
        sizes = {name: len(host.enabled) for name, host in self.hosts.items() if host.state != "disabled"}
        if not request.slots:
            return bool(sizes)
        return any(ways(request, sizes, sizes, self.options.allow_heterogeneous))

    # Classes and order

    def find_late(self, requests, running):
        everyone = [(r.priority, r.sequence, r.request_id, r.slots, r.waited_s) for r in requests]
        everyone += [(g.priority, g.sequence, g.request_id, g.placement.size, g.waited_s) for g in running]
        pool = sum(len(host.enabled) for host in self.hosts.values() if host.state != "disabled")
        for priority in {entry[0] for entry in everyone}:
            of_priority = [entry for entry in everyone if entry[0] == priority]
            steps = {entry[2]: self.steps(entry[4], self.limit_s(entry[3])) for entry in of_priority}
            ordered = sorted(of_priority, key=lambda entry: (-steps[entry[2]], -entry[3], *entry))
            waited = [entry for entry in ordered if steps[entry[2]] >= 0]
            if waited:
                self.first[priority] = waited[0][2]
            total, least = 0, 0
            for number, (_, _, request_id, slots, _) in enumerate(waited):
                total += slots
                if number and total > self.options.protected_share * pool:
                    least = steps[waited[number - 1][2]]
                    break
                self.protected[request_id] = -steps[request_id]
            self.overdue |= {one for one in steps if one not in self.protected and steps[one] >= least - 1}

    def steps(self, waited_s, limit_s):
        if waited_s < limit_s:
            return -1 if waited_s >= limit_s * 15 / 16 else -math.inf
        return (waited_s - limit_s) // max(limit_s / 16, self.options.min_run_s, 60)

    def limit_s(self, slots):
        sizes = [len(host.enabled) for host in self.hosts.values() if host.state != "disabled"]
        return self.options.max_wait_s * (0.9 if slots > max(sizes, default=0) else 1)

    def level(self, of):
        slots = of.slots if isinstance(of, GangRequest) else of.placement.size
        if of.request_id in self.protected:
            return self.protected[of.request_id]
        if of.held_s * slots < self.options.fresh_s:
            return 1
        if of.held_s * slots < self.options.young_s:
            return 2
        return 3 if of.request_id in self.overdue else 4

    def key(self, request):
        level = self.level(request)
        share = 0.0 if level <= 0 else self.held[request.group] / request.weight
        return (request.priority, level, share, self.order(request, level), request.sequence, request.request_id)

    def order(self, request, level):
        if level <= 0:
            return -request.slots
        is_by_use = self.options.preemption == "slices" and level != 3
        return request.slots * request.held_s if is_by_use else 0

    def may_interrupt(self, mine, other):
        if self.options.preemption == "off":
            return False
        if mine.priority != other.priority or self.options.preemption == "priority":
            return other.priority > mine.priority
        return self.level(other) > self.level(mine)

    def is_capped(self, request):
        beside = sum(
            other != request.request_id and self.waiting[other].crowd == request.crowd for other in self.claims
        )
        most = request.max_gangs if request.crowd else None
        if most is not None and self.started[request.crowd] + beside >= most:
            return True
        coming = sum(
            claim.size
            for request_id, claim in self.claims.items()
            if request_id != request.request_id and self.waiting[request_id].group == request.group
        )
        in_use = self.held[request.group] + coming
        return request.max_slots is not None and in_use + request.slots > request.max_slots

    # The pass

    def run(self):
        is_stale = True
        while is_stale:
            is_stale, looked = False, set()
            while not is_stale:
                left = [r for r in self.waiting.values() if r.request_id not in looked and not self.is_capped(r)]
                if not left:
                    break
                request = min(left, key=self.key)
                looked.add(request.request_id)
                is_stale = self.look_at(request)
            for request_id in list(self.reserved):
                if self.is_capped(self.waiting[request_id]):
                    del self.reserved[request_id]
                    is_stale = True
        return self

    def look_at(self, request):
        if request.request_id in self.claims:
            return False
        # A request without slots ignores reservations.
        banned = request.excluded_hosts | (self.closed(request) if request.slots else frozenset())
        placement = self.find(request, banned)
        if placement is not None:
            self.grants.append((request.request_id, placement))
            del self.waiting[request.request_id]
            self.reserved.pop(request.request_id, None)
            self.starting[request.request_id] = (request, placement)
            self.held[request.group] += request.slots
            self.started[request.crowd] += 1
            self.take(placement)
            return False
        found = self.victims(request, banned) or self.moves(request, banned)
        if found is not None:
            victims, claim = found
            self.preemptions += [(gang.request_id, request.request_id) for gang in victims]
            self.ending |= {gang.request_id for gang in victims}
            self.claims[request.request_id] = claim
            self.reserved.pop(request.request_id, None)
            self.take(claim)
            return False
        return request.request_id not in self.reserved and self.reserve(request)

    def find(self, request, banned):
        free = {name: len(self.free[name]) for name, host in self.hosts.items() if host.state == "ready"}
        free = {name: slots for name, slots in free.items() if name not in banned}
        if not request.slots:
            ties = sorted(stable_order(request.request_id, free))
            return Placement({ties[0][1]: ()}) if ties else None
        whole = {name: slots for name, slots in free.items() if slots == len(self.hosts[name].enabled)}
        sign = 1 if self.options.fit == "best" else -1
        preference = Preference(request, free, lambda name, is_whole: 0 if is_whole else sign * free[name])
        found = min(ways(request, free, whole, self.options.allow_heterogeneous), key=preference.key, default=None)
        if found is None:
            return None
        return Placement({name: tuple(sorted(self.free[name])[: request.slots]) for name in found.names})

    def take(self, placement):
        for name, indices in placement.slots.items():
            self.free[name] -= set(indices)

    def gangs_on(self, name):
        running = [(g.request_id, g, g.placement) for g in self.running.values()]
        started = [(r.request_id, r, p) for r, p in self.starting.values()]
        return [(i, of, p.slots[name]) for i, of, p in running + started if p.slots.get(name)]

    def victims(self, request, banned):
        """Return the cheapest victims and their claim, by brute force over sets of hosts and of gangs."""
        if self.options.preemption == "off" or not request.slots:
            return None
        names = [n for n, h in self.hosts.items() if h.state == "ready" and n not in banned]
        legal = {name: self.legal_victims(name, request) for name in names}
        found = self.victims_on_one_host(request, legal)
        if found is not None:
            ids, claim = found
            return [self.running[request_id] for request_id in ids], claim
        ids = self.victims_on_whole_hosts(request, legal)
        return self.trimmed(request, [self.running[request_id] for request_id in ids], banned) if ids else None

    def legal_victims(self, name, request):
        return [
            gang
            for request_id, gang, _ in self.gangs_on(name)
            if request_id in self.running
            and gang.is_preemptible
            and request_id not in self.ending
            and gang.ran_s >= max(self.options.min_run_s, 20 * gang.cost_s)
            and self.may_interrupt(request, gang)
        ]

    def victims_on_one_host(self, request, legal):
        """The cost is: slots ended, gangs ended, seconds run, then the stable hash of the host."""
        offers = []
        for tie, name in stable_order(request.request_id, legal):
            for chosen in subsets(legal[name]):
                freed = sorted(index for gang in chosen for index in gang.placement.slots[name])
                if len(self.free[name]) + len(freed) >= request.slots:
                    ids = tuple(sorted(gang.request_id for gang in chosen))
                    ended = sum(gang.placement.size for gang in chosen)
                    cost = (ended, len(chosen), sum(gang.ran_s for gang in chosen))
                    slots = sorted(self.free[name])[: request.slots]
                    slots += freed[: request.slots - len(slots)]
                    offers.append((cost, tie, name, ids, Placement({name: tuple(sorted(slots))})))
        return min(offers, key=lambda offer: offer[:4])[3:] if offers else None

    def moves(self, request, banned):
        """Return the gangs to move and the claim: on each host the cheapest set, if all of it fits on other hosts."""
        if self.options.preemption != "slices" or not request.slots:
            return None
        names = [n for n, h in self.hosts.items() if h.state == "ready" and n not in banned]
        offers = []
        for tie, name in stable_order(request.request_id, [n for n in names if self.free[n]]):
            found = self.victims_on_one_host(request, {name: self.movable(name, request)})
            if found is None or len(self.hosts[name].enabled) < request.slots:
                continue
            gangs = [self.running[request_id] for request_id in found[0]]
            reserved = {host for kept in self.reserved.values() for host in kept}
            rest = [len(self.free[n]) for n in names if n != name and n not in reserved]
            for size in sorted((gang.placement.size for gang in gangs), reverse=True):
                free = min((free for free in rest if free >= size), default=None)
                if free is None:
                    break
                rest.remove(free)
                rest.append(free - size)
            else:
                cost = (sum(g.placement.size for g in gangs), len(gangs), sum(g.ran_s for g in gangs))
                offers.append((cost, tie, name, gangs, found[1]))
        return min(offers, key=lambda offer: offer[:3])[3:] if offers else None

    def movable(self, name, request):
        return [
            gang
            for request_id, gang, slots in self.gangs_on(name)
            if request_id in self.running
            and gang.is_preemptible
            and request_id not in self.ending
            and gang.ran_s >= max(self.options.min_run_s, 20 * gang.cost_s)
            and gang.priority >= request.priority
            and gang.placement.size == len(slots)
            and request_id != self.first.get(request.priority)
        ]

    def victims_on_whole_hosts(self, request, legal):
        """Return ids. The cost is: slots ended, then on equal hosts seconds run. Larger equal hosts come first."""
        freed = {name: sum(gang.placement.size for gang in gangs) for name, gangs in legal.items()}
        sizes = {name: len(self.hosts[name].enabled) for name in legal}
        whole = {name: size for name, size in sizes.items() if len(self.free[name]) + freed[name] == size}
        found = list(ways(request, {}, whole, self.options.allow_heterogeneous))
        if not found:
            return None

        def key(way):
            ended = sum(freed[name] for name in way.names) if way.rule == UNEQUAL else 0
            seconds = {name: sum(gang.ran_s for gang in legal[name]) * (way.rule != UNEQUAL) for name in way.names}
            preference = Preference(request, sizes, lambda name, _: (freed[name], seconds[name]))
            return (way.rule, ended, *preference.key(way))

        names = min(found, key=key).names
        return [gang.request_id for name in names for gang in legal[name]]

    def trimmed(self, request, victims, banned):
        """Leave out each victim, largest first, without which the request still fits in some layout."""
        kept = list(victims)
        for gang in sorted(victims, key=lambda gang: (-gang.placement.size, -gang.ran_s, gang.request_id)):
            rest = [other for other in kept if other is not gang]
            if self.find_after(request, rest, banned) is not None:
                kept = rest
        return kept, self.find_after(request, kept, banned)

    def find_after(self, request, ended, banned):
        before = {name: set(free) for name, free in self.free.items()}
        for gang in ended:
            for name, indices in gang.placement.slots.items():
                self.free[name] |= set(indices)
        try:
            return self.find(request, banned)
        finally:
            self.free = before

    # Reservations

    def first_protected(self, priority):
        late = [r for r in self.waiting.values() if r.priority == priority and r.request_id in self.protected]
        return min(late, key=self.key, default=None)

    def reserve(self, request):
        is_first = self.first_protected(request.priority) is request
        if not is_first and len(self.reserved) >= self.options.reservations:
            return False
        mine = self.key(request)
        before = [i for i in self.reserved if not is_first or self.key(self.waiting[i]) < mine]
        banned = request.excluded_hosts.union(*(self.reserved[i] for i in before))
        hosts = self.hosts_to_keep(request, banned)
        if not hosts:
            return False
        losers = [i for i, kept in self.reserved.items() if set(kept) & set(hosts)]
        for loser in losers:
            del self.reserved[loser]
        self.reserved[request.request_id] = hosts
        return bool(losers)

    def hosts_to_keep(self, request, banned):
        if not request.slots:
            return ()
        names = [n for n, h in self.hosts.items() if h.state == "ready" and n not in banned]
        able = {name: len(self.hosts[name].enabled - self.hosts[name].blocked) for name in names}
        whole = {name: size for name, size in able.items() if size == len(self.hosts[name].enabled)}

        def cost(name, is_whole):
            return self.in_the_way(name, request, able[name] if is_whole else request.slots)

        preference = Preference(request, able, cost)

        def key(way):
            rows = [cost for _, cost, _, _ in preference.rows(way)]
            return (way.rule == UNEQUAL, *map(sum, zip(*rows, strict=True)), *preference.key(way))

        best = min(ways(request, able, whole, self.options.allow_heterogeneous), key=key, default=None)
        return tuple(sorted(best.names)) if best else ()

    def in_the_way(self, name, request, wanted):
        """Return the number of slots that will not come free, and the seconds that their gangs have held them."""
        missing = wanted - len(self.free[name])
        stay = [(of, indices) for i, of, indices in self.gangs_on(name) if not self.is_coming(i, of, request)]
        coming = sum(len(indices) for i, of, indices in self.gangs_on(name) if self.is_coming(i, of, request))
        if missing <= 0:
            return 0, 0
        return max(0, missing - coming), int(sum(of.held_s for of, _ in stay))

    def is_coming(self, request_id, of, request):
        return request_id in self.ending or (of.is_preemptible and self.may_interrupt(request, of))

    def closed(self, request):
        closed, mine = set(), self.key(request)
        for holder_id, hosts in self.reserved.items():
            holder = self.waiting[holder_id]
            if holder is not request and self.key(holder) < mine and not self.is_open(holder, hosts, request):
                closed |= set(hosts)
        return frozenset(closed)

    def is_open(self, holder, hosts, request):
        due = self.due(hosts)
        if request.max_runtime_s is not None and due is not None and request.max_runtime_s <= due:
            return True
        is_shared = len(hosts) == 1 and len(self.hosts[hosts[0]].enabled) > holder.slots
        wanted = {n: holder.slots if is_shared else len(self.hosts[n].enabled) for n in hosts}
        is_for_good = any(self.missing_for_good(n, holder, wanted[n]) for n in hosts)
        in_time = due is None or self.options.min_run_s <= due
        return request.is_preemptible and is_for_good and in_time and self.may_interrupt(holder, request)

    def missing_for_good(self, name, holder, wanted):
        coming = sum(len(indices) for i, of, indices in self.gangs_on(name) if self.is_coming(i, of, holder))
        return wanted - len(self.free[name]) > coming

    def due(self, hosts):
        latest = 0.0
        for name in hosts:
            held = 0
            for _, of, indices in self.gangs_on(name):
                ends = of.ends_in_s if isinstance(of, RunningGang) else of.max_runtime_s
                if ends is None:
                    return None
                latest, held = max(latest, ends), held + len(indices)
            if len(self.free[name]) + held != len(self.hosts[name].enabled):
                return None
        return latest
