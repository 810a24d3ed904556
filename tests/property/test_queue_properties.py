"""Invariants of every decision of the queue in any pool, and of the live scheduler over time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.scheduling.cycle import step
from airflow_provider_dtrain.core.scheduling.decision import run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.scheduling.pool_state import PoolState
from tests.support.budgets import budget
from tests.support.naive_queue import NaiveQueue
from tests.support.situations import HOUR, Situation, situations

ANY = situations(sizes=(4, 4, 2))
FEW = settings(max_examples=budget(80), deadline=None)


def decide(found: Situation):
    return run_pass(found.hosts, found.requests, found.options, found.running)


def places(placement: Placement) -> list[tuple[str, int]]:
    return [(name, index) for name, indices in placement.slots.items() for index in indices]


@FEW
@given(ANY)
def test_no_slot_is_given_or_promised_twice(found):
    decision = decide(found)
    given_out = Counter(place for _, placement in decision.grants for place in places(placement))
    given_out.update(place for claim in decision.claims.values() for place in places(claim))
    assert not given_out or max(given_out.values()) == 1
    by_name = {host.name: host for host in found.hosts}
    assert all(index in by_name[name].free for _, p in decision.grants for name, index in places(p))


@FEW
@given(ANY)
def test_a_claim_is_on_free_slots_and_on_those_of_its_victims(found):
    decision = decide(found)
    by_name, gangs = {host.name: host for host in found.hosts}, {gang.request_id: gang for gang in found.running}
    for claimant, claim in decision.claims.items():
        told = [gangs[victim] for victim, of in decision.preemptions if of == claimant]
        freed = {place for gang in told for place in places(gang.placement)}
        wanted = {request.request_id: request.slots for request in found.requests}[claimant]
        assert told
        assert claim.size == wanted
        assert all(index in by_name[name].free or (name, index) in freed for name, index in places(claim))


@FEW
@given(ANY)
def test_victims_are_legal_and_told_once(found):
    decision = decide(found)
    naive = NaiveQueue(found.hosts, found.requests, found.options, found.running)
    requests, gangs = {r.request_id: r for r in found.requests}, {g.request_id: g for g in found.running}
    assert len({victim for victim, _ in decision.preemptions}) == len(decision.preemptions)
    for victim, claimant in decision.preemptions:
        gang = gangs[victim]
        assert gang.is_preemptible
        assert not gang.is_ending
        assert gang.ran_s >= max(found.options.min_run_s, 20 * gang.cost_s)
        assert naive.may_interrupt(requests[claimant], gang)


@FEW
@given(ANY)
def test_no_group_exceeds_its_cap(found):
    decision = decide(found)
    requests = {request.request_id: request for request in found.requests}
    held = Counter[str]()
    for gang in found.running:
        held[gang.group] += gang.placement.size
    for request_id, placement in decision.grants:
        request = requests[request_id]
        held[request.group] += placement.size
        assert request.max_slots is None or held[request.group] <= request.max_slots


@FEW
@given(ANY, st.randoms(use_true_random=False))
def test_the_order_of_the_input_is_irrelevant(found, random):
    def shuffled(items):
        return random.sample(items, len(items))

    again = Situation(shuffled(found.hosts), shuffled(found.requests), shuffled(found.running), found.options)
    assert decide(again) == decide(found)


@FEW
@given(ANY)
def test_every_request_is_granted_or_has_a_reason_a_position_and_an_expected_start(found):
    decision = decide(found)
    answers = [set(dict(decision.grants)), set(decision.reasons), set(decision.unplaceable)]
    assert sum(map(len, answers)) == len(found.requests)
    assert set(decision.reasons) == set(decision.positions) == set(decision.expected)
    assert sorted(decision.positions.values()) == list(range(1, len(decision.reasons) + 1))
    assert set(decision.claims) | set(decision.reserved.values()) <= set(decision.reasons)
    assert decision.next_due_s is None or decision.next_due_s > 0


@FEW
@given(ANY, st.sets(st.integers(0, 9)))
def test_a_request_without_a_follower_keeps_its_place_and_delays_no_request_behind_it(found, chosen):
    chosen_requests = [one for index, one in enumerate(found.requests) if index in chosen]
    # A request that waited max_wait counts for the protection of the pool, followed or not.
    silent = {one.request_id for one in chosen_requests if one.waited_s < found.options.max_wait_s}
    requests = [replace(one, is_followed=one.request_id not in silent) for one in found.requests]
    decision = run_pass(found.hosts, requests, found.options, found.running)
    assert silent.isdisjoint(dict(decision.grants))
    assert silent.isdisjoint(claimant for _, claimant in decision.preemptions)
    assert silent <= {*decision.unplaceable, *decision.positions}
    assert all(decision.claims.get(one.request_id) in (None, one.claim) for one in requests if not one.is_followed)
    rest = [one for one in requests if one.is_followed or one.claim is not None or one.reserved_hosts]
    assert run_pass(found.hosts, rest, found.options, found.running).grants == decision.grants


@FEW
@given(situations(sizes=(4,), preemption=("slices",)))
def test_the_one_that_waited_longest_is_interrupted_by_nobody_of_its_priority(found):
    decision = decide(found)
    everyone = {of.request_id: of for of in [*found.requests, *found.running]}
    longest = NaiveQueue(found.hosts, found.requests, found.options, found.running).first
    for victim, claimant in decision.preemptions:
        if longest.get(everyone[victim].priority) == victim:
            assert everyone[claimant].priority < everyone[victim].priority


@FEW
@given(situations(sizes=(4,), preemption=("slices",)))
def test_the_one_that_waited_longest_starts_claims_or_keeps_hosts(found):
    """No request of the same priority overtakes it, unless a better priority keeps the hosts or no host is usable."""
    options = replace(found.options, max_wait_s=36 * HOUR)
    everything = [replace(request, priority=42, max_slots=None, max_gangs=None) for request in found.requests]
    running = [replace(gang, priority=42) for gang in found.running]
    hosts = [replace(host, state="ready") for host in found.hosts]
    first = NaiveQueue(hosts, everything, options, running).first.get(42)
    longest = next((request for request in everything if request.request_id == first), None)
    if longest is None or longest.excluded_hosts or longest.slots not in range(1, 5):
        return
    decision = run_pass(hosts, everything, options, running)
    has = {*dict(decision.grants), *decision.claims, *decision.reserved.values()}
    assert longest.request_id in has


# The live scheduler


def snapshot(state: PoolState, requests: dict[str, GangRequest]) -> Situation:
    """Return the scheduler's state as the arguments of a pass at this time."""
    now, gangs = state.now, list(state.gangs.by_id.values())
    held: dict[str, set[int]] = {name: set() for name in state.free_slots.hosts}
    for gang in gangs:
        for name, index in places(gang.placement):
            held[name].add(index)
    hosts = [replace(host, held=frozenset(held[name])) for name, host in state.free_slots.hosts.items()]
    running = [
        RunningGang(
            request_id=gang.request_id, placement=gang.placement, owner=gang.owner, priority=gang.priority,
            sequence=gang.sequence, group=gang.group, weight=gang.weight, crowd=gang.crowd,
            held_s=now - gang.held_from, waited_s=gang.waited_s, ran_s=now - gang.started,
            is_preemptible=gang.is_preemptible, cost_s=gang.cost_s, is_ending=gang.is_ending,
            ends_in_s=None if gang.ends_at is None else gang.ends_at - now,
        )
        for gang in gangs
    ]  # fmt: skip
    waiting = [
        replace(
            requests[request_id], waited_s=waiter.waited_at(now), held_s=waiter.request.held_s, claim=waiter.claim,
            reserved_hosts=waiter.reserved,
        )
        for request_id, waiter in [*state.waiting.items(), *state.never.items()]
    ]  # fmt: skip
    return Situation(hosts, waiting, running, state.options)


@st.composite
def scripts(draw):
    """Return requests and the events between two passes: (seconds, ends, arrivals), with indexes for choices."""
    steps = st.tuples(
        st.sampled_from([60, 600, 1800, 7200, 20_000, 90_000]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 99)
    )
    return draw(st.lists(steps, min_size=3, max_size=14))


@settings(max_examples=budget(80), deadline=None)
@given(scripts(), situations(sizes=(4, 4, 2), preemption=("slices", "priority")))
def test_a_state_that_lives_on_decides_as_one_that_is_built_anew(script, found):
    options: PoolOptions = found.options
    hosts = [Host(host.name, host.slots) for host in found.hosts]
    state, requests, pending = PoolState(hosts, options), dict[str, GangRequest](), list(found.requests) * 4
    arrived, now = 0, 0
    for seconds, ends, arrivals, choice in script:
        now += seconds
        state.advance(float(now))
        for request_id in sorted(state.gangs.by_id)[choice % 4 :][:ends]:
            gang = state.end(request_id)
            if gang.is_ending:
                held_s, waited_s = now - gang.held_from, gang.waited_s
                state.submit(replace(requests[request_id], held_s=held_s, waited_s=waited_s))
        for request in pending[arrived : arrived + arrivals]:
            arrived += 1
            new = replace(request, request_id=f"r{arrived}", sequence=arrived, held_s=0.0, waited_s=0.0)
            requests[new.request_id] = replace(new, is_preemptible=True)
            state.submit(requests[new.request_id])
        state.advance(float(now))
        fresh = decide(snapshot(state, requests))
        live = step(state, float(now))
        assert live.grants == fresh.grants
        assert sorted(live.preemptions) == sorted(fresh.preemptions)
        assert {w.request.request_id: w.claim for w in state.waiting.values() if w.claim} == dict(fresh.claims)
        assert {host: i for i, w in state.holders.items() for host in w.reserved} == dict(fresh.reserved)
