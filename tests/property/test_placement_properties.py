"""The placement against brute force on small clusters, rule by rule."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, Unplaceable
from airflow_provider_dtrain.core.scheduling.placement import place
from airflow_provider_dtrain.core.scheduling.subset_sum import cheapest_subset, reachable

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
    """Every placement that the rules allow, as (rule, set of acceptable sets of host names)."""
    sharing = [host for host in hosts if len(free_of(host, request)) >= request.slots]
    if sharing:
        left = {host.name: len(free_of(host, request)) for host in sharing}
        wanted = min(left.values()) if fit == "best" else max(left.values())
        return "shared", {frozenset([name]) for name, free in left.items() if free == wanted}
    if request.is_single_host:
        return "none", set()
    whole = [host for host in hosts if is_entirely_free(host, request)]
    exact = [chosen for chosen in subsets(whole) if sum(len(host.enabled) for host in chosen) == request.slots]
    equal = [chosen for chosen in exact if len({len(host.enabled) for host in chosen}) == 1]
    if equal:
        largest = max(len(chosen[0].enabled) for chosen in equal)
        return "equal", {frozenset(h.name for h in chosen) for chosen in equal if len(chosen[0].enabled) == largest}
    if exact and allow_heterogeneous:
        fewest = min(map(len, exact))
        return "unequal", {frozenset(host.name for host in chosen) for chosen in exact if len(chosen) == fewest}
    return "none", set()


def is_possible_by_brute_force(request, hosts, allow_heterogeneous):
    enabled = [Host(h.name, h.slots, disabled=h.disabled) for h in hosts if h.state != "disabled"]
    anywhere = GangRequest(request.request_id, request.slots, is_single_host=request.is_single_host)
    if request.slots == 0:
        return bool(enabled)
    return best_by_brute_force(anywhere, enabled, allow_heterogeneous, "best")[0] != "none"


@settings(max_examples=150, deadline=None)
@given(some_requests(), some_hosts(), st.booleans(), st.sampled_from(["best", "worst"]))
def test_the_answer_is_one_that_brute_force_calls_best(request_, hosts, allow_heterogeneous, fit):
    found = place(request_, hosts, allow_heterogeneous=allow_heterogeneous, fit=fit)
    if request_.slots == 0:
        ready = {h.name for h in hosts if h.state == "ready"} - request_.excluded_hosts
        assert set(found.slots) <= ready if isinstance(found, Placement) else not ready
        return
    rule, acceptable = best_by_brute_force(request_, hosts, allow_heterogeneous, fit)
    if rule == "none":
        assert isinstance(found, Unplaceable)
        return
    assert isinstance(found, Placement), found
    assert frozenset(found.slots) in acceptable
    by_name = {host.name: host for host in hosts}
    assert found.size == request_.slots
    for name, indices in found.slots.items():
        assert list(indices) == sorted(set(indices))
        assert set(indices) <= free_of(by_name[name], request_)
        if rule != "shared":
            assert set(indices) == by_name[name].enabled


@settings(max_examples=150, deadline=None)
@given(some_requests(), some_hosts(), st.booleans())
def test_never_means_not_even_with_every_host_free(request_, hosts, allow_heterogeneous):
    found = place(request_, hosts, allow_heterogeneous=allow_heterogeneous)
    possible = is_possible_by_brute_force(request_, hosts, allow_heterogeneous)
    assert possible if isinstance(found, Placement) else found.never is not possible
    if isinstance(found, Unplaceable):
        assert found.reason.endswith(".")


def fewest_in_the_way(request, hosts, allow_heterogeneous):
    """The least number of slots to free on hosts that are all ready, over every set that the rules allow."""
    sharing = [request.slots - len(host.free) for host in hosts if len(host.enabled) >= request.slots]
    whole = []
    for chosen in [] if request.is_single_host else subsets([host for host in hosts if host.enabled]):
        sizes = [len(host.enabled) for host in chosen]
        if sum(sizes) == request.slots and (len(set(sizes)) == 1 or allow_heterogeneous):
            whole.append(sum(len(host.enabled) - len(host.free) for host in chosen))
    return min(sharing + whole)


@settings(max_examples=150, deadline=None)
@given(some_requests(excluding=False), some_hosts(states=("ready",)), st.booleans())
def test_the_missing_slots_are_the_fewest_that_have_to_become_free(request_, hosts, allow_heterogeneous):
    found = place(request_, hosts, allow_heterogeneous=allow_heterogeneous)
    if isinstance(found, Unplaceable) and not found.never:
        assert found.missing == fewest_in_the_way(request_, hosts, allow_heterogeneous) > 0


@settings(max_examples=150, deadline=None)
@given(some_requests(), some_hosts(), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_the_hosts_does_not_matter(request_, hosts, allow_heterogeneous, random):
    shuffled = random.sample(hosts, len(hosts))
    found = place(request_, hosts, allow_heterogeneous=allow_heterogeneous)
    assert place(request_, shuffled, allow_heterogeneous=allow_heterogeneous) == found


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=150, deadline=None)
@given(some_hosts(), some_queues(), st.integers(1, 3))
def test_nobody_later_in_the_order_starts_on_a_reserved_host(hosts, queue, reservations):
    decision = run_pass(hosts, queue, PoolOptions(reservations=reservations))
    order = {r.request_id: (r.priority, r.sequence) for r in queue}
    for request_id, placement in decision.grants:
        for host, indices in placement.slots.items():
            if indices and host in decision.reserved:
                assert order[request_id] < order[decision.reserved[host]]


@pytest.mark.parametrize("unequal", [False, True])
@settings(max_examples=150, deadline=None)
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
