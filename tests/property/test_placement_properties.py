"""The placement against brute force on small clusters, rule by rule."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.free_slots import FreeSlots
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, Unplaceable
from airflow_provider_dtrain.core.scheduling.placement import place
from airflow_provider_dtrain.core.scheduling.subset_sum import cheapest_subset, reachable
from airflow_provider_dtrain.core.scheduling.unschedulable import could_ever, shortfall
from tests.support.budgets import budget
from tests.support.naive_layouts import ONE, Preference, ways

STATES = ["ready"] * 6 + ["draining", "drained", "disabled", "unreachable", "lost"]


@st.composite
def some_hosts(draw, *, states=tuple(STATES), max_hosts=6):
    hosts = []
    for number in range(draw(st.integers(0, max_hosts))):
        slots = draw(st.integers(0, 5))
        some = st.frozensets(st.integers(0, slots - 1)) if slots else st.just(frozenset())
        rare = some if draw(st.integers(0, 3)) == 0 else st.just(frozenset())
        held = draw(some) if draw(st.booleans()) else frozenset()
        hosts.append(
            Host(f"h{number}", slots, held, draw(st.sampled_from(states)), disabled=draw(rare), blocked=draw(rare))
        )
    return hosts


@st.composite
def some_requests(draw, request_id="r", *, excluding=True):
    excluded = draw(st.frozensets(st.sampled_from([f"h{n}" for n in range(6)]), max_size=2)) if excluding else ()
    return GangRequest(
        request_id,
        draw(st.integers(0, 16)),
        priority=draw(st.integers(1, 3)),
        is_single_host=draw(st.sampled_from([False, False, True])),
        excluded_hosts=frozenset(excluded),
    )


def free_of(host, request):
    return frozenset() if host.name in request.excluded_hosts else host.free


def is_entirely_free(host, request):
    return bool(host.enabled) and free_of(host, request) == host.enabled


def subsets(hosts):
    return [chosen for number in range(1, len(hosts) + 1) for chosen in combinations(hosts, number)]


def best_by_brute_force(request, hosts, allow_heterogeneous, fit):
    """Return the chosen way of all that the rules allow, or None."""
    free = {host.name: len(free_of(host, request)) for host in hosts}
    whole = {host.name: len(host.enabled) for host in hosts if is_entirely_free(host, request)}
    sign = 1 if fit == "best" else -1
    preference = Preference(request, free, lambda name, is_whole: 0 if is_whole else sign * free[name])
    return min(ways(request, free, whole, allow_heterogeneous), key=preference.key, default=None)


def is_possible_by_brute_force(request, hosts, allow_heterogeneous):
    sizes = {host.name: len(host.enabled) for host in hosts if host.state != "disabled"}
    if request.slots == 0:
        return bool(sizes)
    return any(ways(request, sizes, sizes, allow_heterogeneous))


@settings(max_examples=budget(150), deadline=None)
@given(some_requests(), some_hosts(), st.booleans(), st.sampled_from(["best", "worst"]))
def test_the_answer_is_the_one_that_brute_force_calls_best(request_, hosts, allow_heterogeneous, fit):
    found = place(request_, hosts, allow_heterogeneous=allow_heterogeneous, fit=fit)
    if request_.slots == 0:
        ready = {h.name for h in hosts if h.state == "ready"} - request_.excluded_hosts
        assert set(found.slots) <= ready if isinstance(found, Placement) else not ready
        return
    best = best_by_brute_force(request_, hosts, allow_heterogeneous, fit)
    if best is None:
        assert isinstance(found, Unplaceable)
        return
    assert isinstance(found, Placement), found
    assert set(found.slots) == set(best.names)
    by_name = {host.name: host for host in hosts}
    assert found.size == request_.slots
    for name, indices in found.slots.items():
        assert list(indices) == sorted(set(indices))
        assert set(indices) <= free_of(by_name[name], request_)
        if best.rule != ONE:
            assert set(indices) == by_name[name].enabled


@settings(max_examples=budget(150), deadline=None)
@given(some_requests(), some_hosts(), st.booleans())
def test_never_means_not_even_with_every_host_free(request_, hosts, allow_heterogeneous):
    found = place(request_, hosts, allow_heterogeneous=allow_heterogeneous)
    possible = is_possible_by_brute_force(request_, hosts, allow_heterogeneous)
    assert possible if isinstance(found, Placement) else found.never is not possible
    if isinstance(found, Unplaceable):
        assert found.reason.endswith(".")


def closest_by_brute_force(request, hosts, allow_heterogeneous, closed):
    """Return the way with the fewest unusable hosts, then the fewest slots in the way, and these numbers."""
    by_name = {host.name: host for host in hosts if host.state != "disabled"}
    sizes = {name: len(host.enabled) for name, host in by_name.items()}

    def cost(name, is_whole):
        """Return unusable hosts, slots in the way, and, on unusable hosts, slots that are not free either."""
        wanted = sizes[name] if is_whole else request.slots
        lacking = max(0, wanted - len(free_of(by_name[name], request)))
        if name in closed or by_name[name].state != "ready" or name in request.excluded_hosts:
            return 1, wanted, lacking
        return 0, lacking, 0

    def total(way):
        return tuple(map(sum, zip(*(cost(name, way.rule != ONE) for name in way.names), strict=True)))

    preference = Preference(request, sizes, cost)
    best = min(ways(request, sizes, sizes, allow_heterogeneous), key=lambda way: (total(way), preference.key(way)))
    return best, total(best)


@settings(max_examples=budget(300), deadline=None)
@given(some_requests(), some_hosts(), st.booleans(), st.frozensets(st.sampled_from(["h0", "h1", "h2"])))
def test_the_closest_hosts_have_the_fewest_slots_in_the_way(request_, hosts, allow_heterogeneous, closed):
    free_slots, options = FreeSlots(hosts), PoolOptions(allow_heterogeneous=allow_heterogeneous)
    if request_.slots == 0 or not could_ever(free_slots, request_, options):
        return
    best, (unusable, missing, _) = closest_by_brute_force(request_, hosts, allow_heterogeneous, closed)
    need = shortfall(free_slots, request_, options, closed)
    assert (need.is_whole, need.missing) == (best.rule != ONE, missing)
    if not need.is_whole and set(best.names) <= set(need.reserved):
        # Any of these hosts would serve.
        assert need.hosts == need.reserved
        return
    assert set(need.hosts) == set(best.names)
    assert len(need.unusable) == unusable


@settings(max_examples=budget(150), deadline=None)
@given(some_requests(), some_hosts(), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_the_hosts_does_not_matter(request_, hosts, allow_heterogeneous, random):
    shuffled = random.sample(hosts, len(hosts))
    found = place(request_, hosts, allow_heterogeneous=allow_heterogeneous)
    assert place(request_, shuffled, allow_heterogeneous=allow_heterogeneous) == found


@settings(max_examples=budget(150), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=8), st.integers(1, 40))
def test_the_subset_is_the_cheapest_then_the_smallest(items, total):
    sizes = sorted({size for size, _ in items}, reverse=True)
    groups = [(size, sorted(cost for other, cost in items if other == size)) for size in sizes]
    exact = [chosen for chosen in subsets(items) if sum(size for size, _ in chosen) == total]
    taken = cheapest_subset(groups, total)
    counts = [(size, len(costs)) for size, costs in groups]
    assert bool(reachable(counts, total) >> total & 1) == bool(exact)
    if not exact:
        assert taken is None
        return
    assert sum(size * number for (size, _), number in zip(groups, taken, strict=True)) == total
    spent = sum(sum(costs[:number]) for (_, costs), number in zip(groups, taken, strict=True))
    assert (spent, sum(taken)) == min((sum(cost for _, cost in chosen), len(chosen)) for chosen in exact)


@st.composite
def some_queues(draw):
    wide = draw(st.lists(some_requests(), max_size=8))
    return [
        GangRequest(str(number), r.slots, r.priority, r.is_single_host, r.excluded_hosts, sequence=number)
        for number, r in enumerate(wide)
    ]


@settings(max_examples=budget(150), deadline=None)
@given(some_hosts(), some_queues(), st.integers(0, 3), st.booleans(), st.randoms(use_true_random=False))
def test_a_pass_never_gives_a_slot_twice_and_answers_every_request(hosts, queue, reservations, unequal, random):
    options = PoolOptions(reservations=reservations, allow_heterogeneous=unequal)
    decision = run_pass(hosts, queue, options)
    given_out = [(host, index) for _, p in decision.grants for host, indices in p.slots.items() for index in indices]
    assert len(given_out) == len(set(given_out))
    by_name = {host.name: host for host in hosts}
    assert all(index in by_name[host].free for host, index in given_out)
    wanted = {request.request_id: request.slots for request in queue}
    assert all(placement.size == wanted[request_id] for request_id, placement in decision.grants)
    granted = {request_id for request_id, _ in decision.grants}
    answers = [granted, set(decision.reasons), set(decision.unplaceable)]
    assert sum(map(len, answers)) == len(queue)
    assert set().union(*answers) == {request.request_id for request in queue}
    assert sorted(decision.positions.values()) == list(range(1, len(decision.reasons) + 1))
    assert len(set(decision.reserved.values())) <= reservations
    assert run_pass(random.sample(hosts, len(hosts)), random.sample(queue, len(queue)), options) == decision


@settings(max_examples=budget(150), deadline=None)
@given(some_hosts(), some_queues(), st.integers(1, 3))
def test_nobody_later_in_the_order_starts_on_a_reserved_host(hosts, queue, reservations):
    decision = run_pass(hosts, queue, PoolOptions(reservations=reservations))
    order = {r.request_id: (r.priority, r.sequence) for r in queue}
    for request_id, placement in decision.grants:
        for host, indices in placement.slots.items():
            if indices and host in decision.reserved:
                assert order[request_id] < order[decision.reserved[host]]


@pytest.mark.parametrize("unequal", [False, True])
@settings(max_examples=budget(150), deadline=None)
@given(some_hosts(), some_queues())
def test_what_a_pass_grants_nothing_to_cannot_be_placed_on_what_is_left(unequal, hosts, queue):
    options = PoolOptions(reservations=0, allow_heterogeneous=unequal)
    decision = run_pass(hosts, queue, options)
    taken: dict[str, set[int]] = {host.name: set(host.held) for host in hosts}
    for _, placement in decision.grants:
        for host, indices in placement.slots.items():
            taken[host].update(indices)
    left = [Host(h.name, h.slots, frozenset(taken[h.name]), h.state, h.disabled, h.blocked) for h in hosts]
    waiting = [request for request in queue if request.request_id in decision.reasons]
    assert all(isinstance(place(r, left, allow_heterogeneous=unequal), Unplaceable) for r in waiting)
