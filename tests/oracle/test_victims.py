"""The preempted gangs, compared with every legal set of gangs."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.scheduling.placement import place
from airflow_provider_dtrain.core.scheduling.preemption import cheapest_cover
from tests.support.budgets import budget
from tests.support.situations import situations

HOUR = 3600.0


def subsets(items):
    return chain.from_iterable(combinations(items, number) for number in range(len(items) + 1))


def without(hosts, gangs):
    """Return the hosts as they are after these gangs have ended."""
    gone = {(name, index) for gang in gangs for name, indices in gang.placement.slots.items() for index in indices}
    return [
        Host(h.name, h.slots, frozenset(i for i in h.held if (h.name, i) not in gone), h.state, h.disabled, h.blocked)
        for h in hosts
    ]


def fits(request, hosts, gangs):
    return isinstance(place(request, without(hosts, gangs)), Placement)


def old_gang(number, slots, **fields):
    values = {"sequence": number, "held_s": 9 * HOUR, "ran_s": 2 * HOUR + number, "is_preemptible": True, **fields}
    return RunningGang(request_id=f"g{number}", placement=Placement(slots), owner=f"trial {number}", **values)


@st.composite
def full_hosts(draw):
    """Full hosts of up to 10 slots, and the gangs of up to 5 slots that hold them."""
    hosts, gangs = [], []
    for number in range(draw(st.integers(1, 3))):
        slots = draw(st.integers(1, 10))
        at = 0
        while at < slots:
            size = min(draw(st.integers(1, 5)), slots - at)
            parts = {f"h{number}": tuple(range(at, at + size))}
            gangs.append(old_gang(len(gangs), parts, ran_s=draw(st.sampled_from([2000.0, 2000.0, 3000.0, 9000.0]))))
            at += size
        hosts.append(Host(f"h{number}", slots, frozenset(range(slots))))
    return hosts, gangs


@settings(max_examples=budget(150), deadline=None)
@given(full_hosts(), st.integers(1, 10))
def test_the_victims_on_one_host_cost_the_least_of_all_sets_that_suffice(found, slots):
    hosts, gangs = found
    request = GangRequest("r", slots, is_single_host=True, sequence=99)
    decision = run_pass(hosts, [request], PoolOptions(preemption="slices"), gangs)

    def cost(chosen):
        ended = sum(gang.placement.size for gang in chosen)
        return (ended, len(chosen), sum(gang.ran_s for gang in chosen))

    costs = [
        cost(chosen)
        for host in hosts
        for chosen in subsets([gang for gang in gangs if host.name in gang.placement.slots])
        if fits(request, hosts, chosen)
    ]
    chosen = [gang for gang in gangs if gang.request_id in dict(decision.preemptions)]
    assert bool(chosen) == bool(costs) == (slots <= max(host.slots for host in hosts))
    assert not costs or cost(chosen) == min(costs)


@settings(max_examples=budget(150), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(0, 3)), max_size=7), st.integers(1, 14))
def test_the_cheapest_cover_is_that_of_brute_force(items, need):
    rows = [(count, (count + more, 1, float(run), (str(n),))) for n, (count, more, run) in enumerate(items)]
    enough = [chosen for chosen in subsets(rows) if sum(count for count, _ in chosen) >= need]
    costs = [tuple(sum(cost[part] for _, cost in chosen) for part in range(3)) for chosen in enough]
    found = cheapest_cover(rows, need)
    assert (found is None) == (not costs)
    assert found is None or found[:3] == min(costs)


@settings(max_examples=budget(200), deadline=None)
@given(situations(sizes=(4, 4, 2), preemption=("slices", "priority")))
def test_no_victim_could_be_left_out(found):
    """Each request is alone in the queue."""
    for request in found.requests[:3]:
        decision = run_pass(found.hosts, [request], found.options, found.running)
        gone = [gang for gang in found.running if gang.request_id in dict(decision.preemptions)]
        if not gone:
            continue
        assert fits(request, found.hosts, gone)
        assert not any(fits(request, found.hosts, fewer) for fewer in combinations(gone, len(gone) - 1))


def test_a_gang_on_two_hosts_is_paid_for_once():
    """One gang holds three slots on each of a and b. Two other gangs hold four slots on c and on d."""
    both = old_gang(0, {"a": (0, 1, 2), "b": (0, 1, 2)})
    others = [old_gang(1, {"c": (0, 1, 2, 3)}), old_gang(2, {"d": (0, 1, 2, 3)})]
    hosts = [Host(name, 8, frozenset(range(3 if name in "ab" else 4))) for name in "abcd"]
    decision = run_pass(hosts, [GangRequest("r", 16, sequence=99)], PoolOptions(preemption="slices"), [both, *others])
    assert dict(decision.preemptions) == {"g0": "r"}
    assert set(decision.claims["r"].slots) == {"a", "b"}


def test_a_victim_that_a_wider_one_makes_needless_is_dropped():
    """The gang on b is chosen first. The gang on a and c frees two hosts at once, so b is no longer needed."""
    small = old_gang(0, {"b": (0, 1, 2)})
    wide = old_gang(1, {"a": (0, 1, 2, 3), "c": (0, 1, 2, 3)})
    hosts = [Host("a", 4, frozenset(range(4))), Host("b", 4, frozenset(range(3))), Host("c", 4, frozenset(range(4)))]
    decision = run_pass(hosts, [GangRequest("r", 8, sequence=99)], PoolOptions(preemption="slices"), [small, wide])
    assert dict(decision.preemptions) == {"g1": "r"}
    assert set(decision.claims["r"].slots) == {"a", "c"}
