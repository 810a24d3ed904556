"""Classes, order, preemption, claims, reservations and caps of the queue, rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_dtrain.core.scheduling.aging import Late, late_levels
from airflow_provider_dtrain.core.scheduling.cycle import step
from airflow_provider_dtrain.core.scheduling.decision import PassDecision, run_pass
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang
from airflow_provider_dtrain.core.scheduling.pool_state import PoolState
from airflow_provider_dtrain.core.scheduling.priority_tiers import (
    OVERDUE,
    PROTECTED,
    STEPS,
    late_steps,
    next_step_s,
    step_s,
)

HOUR = 3600.0
#: A gang of 8 slots is fresh for 2 hours, and young for 8.
SLICES = PoolOptions(preemption="slices", fresh_s=16 * HOUR, young_s=64 * HOUR, max_wait_s=36 * HOUR, min_run_s=1800.0)
LATE = 36 * HOUR


def request(number: int, slots: int, **fields) -> GangRequest:
    return GangRequest(str(number), slots, **{"sequence": number, **fields})


def gang(name: str, host: str, slots, **fields) -> RunningGang:
    values = {"sequence": 0, "held_s": 9 * HOUR, "ran_s": HOUR, "is_preemptible": True, **fields}
    return RunningGang(request_id=name, placement=Placement({host: tuple(slots)}), owner=f"trial {name}", **values)


def hosts_for(running, *names: str, slots: int = 8) -> list[Host]:
    """Return hosts on which these gangs hold their slots."""
    held: dict[str, set[int]] = {name: set() for name in names}
    for each in running:
        for name, indices in each.placement.slots.items():
            held[name] |= set(indices)
    return [Host(name, slots, frozenset(indices)) for name, indices in held.items()]


def granted(decision: PassDecision) -> list[str]:
    return [request_id for request_id, _ in decision.grants]


def order(requests, options=SLICES, hosts=99) -> list[str]:
    return granted(run_pass([Host(f"h{n}", 8) for n in range(hosts)], requests, options))


# Classes and order


def test_classes_go_protected_fresh_young_overdue_rest():
    queue = [
        request(1, 8, held_s=9 * HOUR),
        request(2, 8, held_s=9 * HOUR, waited_s=LATE),
        request(3, 8, held_s=3 * HOUR, waited_s=LATE),
        request(4, 8, held_s=HOUR),
        request(0, 8, held_s=20 * HOUR, waited_s=LATE),
    ]
    assert order(queue, replace(SLICES, protected_share=0.0)) == ["0", "4", "3", "2", "1"]


def test_priority_comes_before_class():
    assert order([request(1, 8), request(2, 8, priority=10, held_s=9 * HOUR)]) == ["2", "1"]


def test_the_thresholds_are_options_of_the_pool():
    options = PoolOptions(fresh_s=80.0, young_s=160.0, max_wait_s=30.0, protected_share=0.0)
    queue = [request(1, 8, held_s=20.0), request(2, 8, held_s=10.0), request(3, 8, held_s=9.0)]
    late = [request(4, 8, held_s=99.0, waited_s=30.0), request(5, 8, held_s=99.0, waited_s=30.0)]
    assert order(queue + late, options) == ["4", "3", "2", "5", "1"]


def test_the_protected_go_by_steps_of_waiting_then_by_submission():
    step_h = 36 / STEPS
    waited = {1: 36, 2: 36 + 0.9 * step_h, 3: 36 + 1.1 * step_h, 4: 36 + 5 * step_h, 5: 36 + 1.9 * step_h}
    queue = [request(n, 8, held_s=9 * HOUR, waited_s=hours * HOUR) for n, hours in waited.items()]
    assert order(queue, replace(SLICES, protected_share=1.0)) == ["4", "3", "5", "1", "2"]


def test_of_the_protected_that_waited_as_many_steps_those_with_more_slots_go_first():
    slots = {1: 2, 2: 8, 3: 4, 4: 8}
    queue = [request(n, count, held_s=99 * HOUR, waited_s=LATE) for n, count in slots.items()]
    assert order(queue, replace(SLICES, protected_share=1.0)) == ["2", "4", "3", "1"]
    # 20 of the 40 slots.
    assert order([*queue, request(5, 8)], replace(SLICES, protected_share=0.5), hosts=5) == ["2", "4", "3", "5", "1"]


@pytest.mark.parametrize(("rule", "expected"), [("slices", "4312"), ("priority", "1234"), ("off", "1234")])
def test_requests_of_a_class_go_by_used_slot_hours_where_they_interrupt_each_other(rule, expected):
    options = replace(SLICES, preemption=rule, max_wait_s=900 * HOUR)
    slots = {1: 8, 2: 4, 3: 2, 4: 8}
    for used in ({1: 9, 2: 10, 3: 8, 4: 0}, {1: 61, 2: 62, 3: 60, 4: 59}, {1: 81, 2: 82, 3: 80, 4: 79}):
        queue = [request(n, slots[n], held_s=hours * HOUR / slots[n]) for n, hours in used.items()]
        assert order(queue, options) == list(expected)


def test_requests_that_never_ran_go_by_submission():
    assert order([request(1, 8), request(2, 1), request(3, 16), request(4, 2)]) == ["1", "2", "3", "4"]


def test_a_request_that_ran_meanwhile_has_the_place_of_what_it_has_used_now():
    used = {1: 80, 2: 90, 3: 100, 4: 120}
    state = PoolState([Host("a", 8, frozenset(range(8)))], SLICES)
    for number, hours in used.items():
        state.submit(request(number, 8, held_s=hours * HOUR / 8))
    state.withdraw("2")
    state.submit(request(2, 8, held_s=110 * HOUR / 8))
    (lane,) = state.queue
    for expected in "1324":
        waiter = lane.first()
        assert waiter is not None
        assert waiter.request.request_id == expected
        state.withdraw(expected)


def test_overdue_requests_go_by_submission():
    queue = [request(1, 8, held_s=20 * HOUR, waited_s=LATE), request(2, 4, held_s=17 * HOUR, waited_s=35 * HOUR)]
    first = request(0, 8, held_s=20 * HOUR, waited_s=LATE, sequence=0)
    assert order([first, *queue], replace(SLICES, protected_share=0.0)) == ["0", "1", "2"]


def test_while_the_share_is_full_only_those_a_step_behind_the_last_protected_are_overdue():
    hours = {1: 72, 2: 71, 3: 70, 4: 40, 5: 0}
    queue = [request(n, 8, held_s=9 * HOUR, waited_s=hour * HOUR) for n, hour in hours.items()]
    late = [Late(-steps, -8, one.sequence, one.request_id) for one in queue if (steps := steps_of(one)) is not None]
    assert late_levels(late, 40, replace(SLICES, protected_share=1.0)) == {"1": -16, "2": -15, "3": -15, "4": -1}
    full = replace(SLICES, protected_share=0.2)
    assert late_levels(late, 40, full) == {"1": -16, "2": OVERDUE, "3": OVERDUE}
    late[1:2] = []
    assert late_levels(late, 40, full) == {"1": -16, "3": OVERDUE}


def steps_of(one: GangRequest) -> int | None:
    return late_steps(one.waited_s, SLICES.max_wait_s, SLICES)


@pytest.mark.parametrize(
    ("waited_h", "steps", "next_h"),
    [(0, None, 33.75), (33.7, None, 0.05), (33.75, -1, 2.25), (35.9, -1, 0.1), (36, 0, 2.25), (72, 16, 2.25)],
)
def test_the_wait_is_counted_in_steps_from_shortly_before_its_limit(waited_h, steps, next_h):
    assert late_steps(waited_h * HOUR, 36 * HOUR, SLICES) == steps
    assert next_step_s(waited_h * HOUR, 36 * HOUR, SLICES) == pytest.approx(next_h * HOUR, abs=0.01)


def test_a_step_is_never_shorter_than_min_run_and_a_minute():
    assert step_s(16 * 60.0, replace(SLICES, min_run_s=0.0)) == 60.0
    assert step_s(16 * 30.0, replace(SLICES, min_run_s=0.0)) == 60.0
    assert step_s(16 * 30.0, replace(SLICES, min_run_s=90.0)) == 90.0


def test_the_protected_are_the_first_within_the_share_of_the_pool_and_at_least_one():
    queue = [request(n, 8, held_s=9 * HOUR, waited_s=LATE) for n in (1, 2, 3)] + [request(9, 8)]
    assert order(queue, replace(SLICES, protected_share=0.5), hosts=4) == ["1", "2", "9", "3"]
    assert order(queue, replace(SLICES, protected_share=0.0), hosts=4) == ["1", "9", "2", "3"]


def test_running_gangs_take_part_of_the_protected_share():
    running = [gang("g", "h0", range(8), waited_s=LATE, sequence=0)]
    hosts = hosts_for(running, "h0", "h1", "h2")
    queue = [request(1, 8, held_s=9 * HOUR, waited_s=LATE), request(2, 8)]
    assert granted(run_pass(hosts, queue, replace(SLICES, protected_share=0.4), running)) == ["2", "1"]
    assert granted(run_pass(hosts, queue, replace(SLICES, protected_share=0.7), running)) == ["1", "2"]


def test_the_group_that_holds_less_goes_first_and_grants_of_the_pass_count():
    queue = [request(n, 8, group="a") for n in (1, 2, 3)] + [request(n, 8, group="b") for n in (4, 5)]
    assert order(queue) == ["1", "4", "2", "5", "3"]


def test_a_weight_of_two_gets_two_for_one():
    queue = [request(n, 8, group="a", weight=2.0) for n in (1, 2, 3, 4)]
    queue += [request(n, 8, group="b") for n in (5, 6)]
    assert order(queue) == ["1", "5", "2", "3", "6", "4"]


def test_the_share_does_not_order_the_protected():
    running = [gang("g", "h0", range(8), group="a")]
    queue = [request(1, 8, group="a", waited_s=LATE), request(2, 8, group="b", waited_s=LATE)]
    hosts = hosts_for(running, "h0", "h1", "h2", "h3", "h4")
    assert granted(run_pass(hosts, queue, SLICES, running)) == ["1", "2"]


# Preemption


def victims(decision: PassDecision) -> list[str]:
    return sorted(victim for victim, _ in decision.preemptions)


@pytest.mark.parametrize(("rule", "expected"), [("off", []), ("priority", []), ("slices", ["g"])])
def test_a_fresh_request_interrupts_an_old_gang_of_its_priority_only_under_slices(rule, expected):
    running = [gang("g", "a", range(8))]
    decision = run_pass(hosts_for(running, "a"), [request(1, 8)], PoolOptions(preemption=rule), running)
    assert victims(decision) == expected


@pytest.mark.parametrize(("rule", "expected"), [("off", []), ("priority", ["g"]), ("slices", ["g"])])
def test_a_better_priority_interrupts_a_worse_one_of_any_class(rule, expected):
    running = [gang("g", "a", range(8), held_s=HOUR)]
    queue = [request(1, 8, priority=10, held_s=9 * HOUR)]
    assert victims(run_pass(hosts_for(running, "a"), queue, PoolOptions(preemption=rule), running)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"is_preemptible": False},
        {"ran_s": 1799.0},
        {"ran_s": HOUR, "cost_s": 181.0},
        {"is_ending": True},
        {"held_s": HOUR},
        {"priority": 41},
    ],
    ids=["not preemptible", "min_run", "20 times its cost", "ending", "same class", "better priority"],
)
def test_who_may_not_be_interrupted(fields):
    running = [gang("g", "a", range(8), **fields)]
    assert victims(run_pass(hosts_for(running, "a"), [request(1, 8)], SLICES, running)) == []


def test_a_protected_request_interrupts_gangs_that_waited_a_step_less_and_no_others():
    queue = [request(5, 8, waited_s=40 * HOUR, held_s=9 * HOUR)]
    options = replace(SLICES, protected_share=1.0, max_wait_s=32 * HOUR)
    for waited_h, sequence, expected in ((0, 1, ["g"]), (39, 1, ["g"]), (41, 9, []), (45, 9, [])):
        running = [gang("g", "a", range(8), sequence=sequence, held_s=HOUR, waited_s=waited_h * HOUR)]
        hosts = [*hosts_for(running, "a"), Host("b", 8, frozenset(range(8)))]
        assert victims(run_pass(hosts, queue, options, running)) == expected


def test_free_slots_are_used_before_anybody_is_interrupted():
    running = [gang("g", "a", range(8))]
    decision = run_pass(hosts_for(running, "a", "b"), [request(1, 8)], SLICES, running)
    assert (granted(decision), victims(decision)) == (["1"], [])


def test_the_fewest_slots_then_the_fewest_gangs_then_the_least_run_are_ended():
    running = [
        gang("four", "a", range(4)),
        gang("two", "b", range(2)), gang("too", "b", range(2, 4)),
        gang("long", "c", range(4), ran_s=3 * HOUR), gang("wide", "d", range(5)),
    ]  # fmt: skip
    hosts = [replace(host, held=frozenset(range(8))) for host in hosts_for(running, "a", "b", "c", "d")]
    assert victims(run_pass(hosts, [request(1, 4)], SLICES, running)) == ["four"]


def test_no_gang_ends_that_is_not_needed_once_hosts_of_unequal_sizes_may_form_one_gang():
    """Four hosts of one slot come first, but with the free host of two slots one of their three gangs is enough."""
    running = [gang(f"g{number}", f"h{number}", [0], held_s=99 * HOUR) for number in range(3)]
    hosts = [*hosts_for(running, "h0", "h1", "h2", "free", slots=1), Host("two", 2)]
    options = replace(SLICES, allow_heterogeneous=True)
    decision = run_pass(hosts, [request(1, 4)], options, running)
    assert len(victims(decision)) == 1
    assert decision.claims["1"].size == 4


def test_a_request_has_one_claim_and_orders_nothing_more():
    running = [gang("g", "a", range(8)), gang("h", "b", range(8))]
    hosts = hosts_for(running, "a", "b")
    first = run_pass(hosts, [request(1, 8)], SLICES, running)
    ((victim, claimant),) = first.preemptions
    told = [replace(each, is_ending=each.request_id == victim) for each in running]
    again = run_pass(hosts, [request(1, 8, claim=first.claims[claimant])], SLICES, told)
    assert (again.preemptions, again.claims) == ((), first.claims)


# Claims


def test_claimed_slots_go_to_the_claimant_only_and_once_all_are_free():
    claim = Placement({"a": (0, 1, 2, 3)})
    ending = [gang("g", "a", (0, 1), is_ending=True)]
    queue = [request(0, 2), request(1, 4, claim=claim)]
    half = run_pass(hosts_for(ending, "a", slots=4), queue, SLICES, ending)
    assert (granted(half), dict(half.claims)) == ([], {"1": claim})
    whole = run_pass(hosts_for([], "a", slots=4), queue, SLICES)
    assert whole.grants == (("1", claim),)


@pytest.mark.parametrize("state", ["draining", "unreachable", "lost"])
def test_a_claim_ends_with_its_host(state):
    hosts = [Host("a", 4, frozenset({0}), state), Host("b", 4)]
    decision = run_pass(hosts, [request(1, 4, claim=Placement({"a": (0, 1, 2, 3)}))], SLICES)
    assert (granted(decision), dict(decision.claims)) == (["1"], {})


def test_a_claim_on_slots_of_a_gang_that_was_not_told_to_stop_ends():
    running = [gang("g", "a", range(4), held_s=HOUR)]
    claim = Placement({"a": (0, 1, 2, 3)})
    decision = run_pass(hosts_for(running, "a", slots=4), [request(1, 4, claim=claim)], SLICES, running)
    assert dict(decision.claims) == {}


def test_two_requests_cannot_claim_one_slot():
    """The request behind the first one is served elsewhere, and the slots that it cannot have stay with the first."""
    ending = [gang("g", "a", (0, 1), is_ending=True)]
    claim = Placement({"a": (0, 1, 2, 3)})
    hosts = hosts_for(ending, "a", "b", slots=4)
    queue = [request(1, 4, claim=claim), request(2, 4, claim=claim)]
    decision = run_pass(hosts, queue, SLICES, ending)
    assert dict(decision.claims) == {"1": claim}
    assert decision.grants == (("2", Placement({"b": (0, 1, 2, 3)})),)
    overlapping = replace(queue[1], slots=2, claim=Placement({"a": (3,), "b": (0,)}))
    assert dict(run_pass(hosts, [queue[0], overlapping], SLICES, ending).claims) == {"1": claim}


def test_a_claim_of_two_requests_goes_to_the_other_one_when_the_first_is_gone():
    ending = [gang("g", "a", range(4), is_ending=True)]
    claim = Placement({"a": (0, 1, 2, 3)})
    scheduler = PoolState(hosts_for(ending, "a", slots=4), SLICES, ending)
    scheduler.submit(request(1, 4, claim=claim))
    scheduler.submit(request(2, 4, claim=claim))
    scheduler.withdraw("1")
    assert scheduler.claimed == {}
    scheduler.end("g")
    assert [request_id for request_id, _ in step(scheduler, 0.0).grants] == ["2"]


@pytest.mark.parametrize("field", ["blocked", "disabled"])
def test_a_slot_that_cannot_be_granted_is_not_free_once_its_gang_ends(field):
    """Such as a slot whose process could not be killed, or on which a foreign process runs."""
    running = [gang("g", "a", range(4))]
    (whole,) = hosts_for(running, "a", slots=4)
    scheduler = PoolState([replace(whole, **{field: frozenset({2})})], SLICES, running)
    scheduler.end("g")
    assert scheduler.free_slots.free == {"a": 3}
    for number in (1, 2):
        scheduler.submit(request(number, 2))
    outcome = step(scheduler, 0.0)
    assert [(name, slots.slots) for name, slots in outcome.grants] == [("1", {"a": (0, 1)})]


def test_a_claimant_says_what_is_coming_and_who_was_told_to_stop():
    ending = [gang("7", "a", (0, 1), is_ending=True)]
    queue = [request(1, 4, claim=Placement({"a": (0, 1, 2, 3)}))]
    decision = run_pass(hosts_for(ending, "a", slots=4), queue, SLICES, ending)
    assert decision.reasons["1"] == ("Position 1. 4 slots on a claimed for it: 2 free. Stopping: trial 7.")


# Reservations


def test_a_reservation_stays_on_its_hosts_although_others_are_nearer_by_now():
    hosts = [Host("a", 8, frozenset(range(7))), Host("b", 8, frozenset({0}))]
    assert run_pass(hosts, [request(1, 8)], SLICES).reserved == {"b": "1"}
    assert run_pass(hosts, [request(1, 8, reserved_hosts=("a",))], SLICES).reserved == {"a": "1"}


@pytest.mark.parametrize(
    "old", [("gone",), ("b", "c"), ("draining",)], ids=["unknown host", "not its size", "draining host"]
)
def test_a_reservation_that_makes_no_sense_any_more_is_made_anew(old):
    hosts = [Host("draining", 8, state="draining")] + [Host(name, 8, frozenset({0})) for name in "abc"]
    reserved = run_pass(hosts, [request(1, 8, reserved_hosts=old)], SLICES).reserved
    assert len(reserved) == 1
    assert set(reserved) < {"a", "b", "c"}


def test_the_reserved_hosts_are_those_where_the_holder_can_end_most_later():
    """Every gang on b becomes preemptible after its minimum run time, but one slot of a never does."""
    running = [gang("fixed", "a", (0,), is_preemptible=False), gang("young", "b", range(8), ran_s=60.0)]
    decision = run_pass(hosts_for(running, "a", "b"), [request(1, 8)], SLICES, running)
    assert decision.reserved == {"b": "1"}


def test_an_equal_number_of_slots_in_the_way_goes_by_the_time_held():
    running = [gang(name, host, (0,), is_preemptible=False, held_s=held)
               for name, host, held in (("x", "a", 9 * HOUR), ("y", "b", 8 * HOUR))]  # fmt: skip
    assert run_pass(hosts_for(running, "a", "b"), [request(1, 8)], SLICES, running).reserved == {"b": "1"}


def beside_a_reservation(later: GangRequest, **fields) -> list[str]:
    """Return the requests that start on a host of 8 slots, of which one is held, reserved for request 1."""
    running = [gang("g", "a", (0,), **{"is_preemptible": False, **fields})]
    holder = request(1, 8, reserved_hosts=("a",))
    return granted(run_pass(hosts_for(running, "a"), [holder, later], SLICES, running))


def test_an_earlier_request_starts_on_a_reserved_host():
    assert beside_a_reservation(request(0, 1)) == ["0"]


def test_a_request_that_the_holder_may_interrupt_starts_on_a_reserved_host():
    assert beside_a_reservation(request(2, 1, held_s=20 * HOUR, is_preemptible=True)) == ["2"]
    assert beside_a_reservation(request(2, 1, held_s=3 * HOUR)) == []
    assert beside_a_reservation(request(2, 1, is_preemptible=True)) == []


def test_nobody_starts_on_a_reserved_host_whose_last_gangs_the_holder_may_end_soon():
    """Else the holder would wait for the min_run of one after the other without end."""
    later = request(2, 1, held_s=3 * HOUR, is_preemptible=True)
    assert beside_a_reservation(later, is_preemptible=True, ran_s=60.0) == []


def test_a_short_request_starts_on_a_reserved_host_if_everything_there_ends_later_by_its_max_runtime():
    assert beside_a_reservation(request(2, 1, max_runtime_s=60.0), ends_in_s=60.0) == ["2"]
    assert beside_a_reservation(request(2, 1, max_runtime_s=61.0), ends_in_s=60.0) == []
    assert beside_a_reservation(request(2, 1, max_runtime_s=60.0), ends_in_s=None) == []


def test_the_first_protected_request_reserves_beyond_the_number_and_takes_hosts_from_those_behind_it():
    hosts = [Host("a", 8, frozenset({0})), Host("b", 8, frozenset({0}))]
    queue = [request(2, 8, reserved_hosts=("a",)), request(3, 8, reserved_hosts=("b",))]
    oldest = request(9, 16, waited_s=LATE, held_s=9 * HOUR)
    decision = run_pass(hosts, [*queue, oldest], SLICES)
    assert decision.reserved == {"a": "9", "b": "9"}


# Caps and messages


def test_a_group_at_its_cap_does_not_start_and_its_waiting_does_not_count():
    running = [gang("g", "a", range(4), group="e")]
    queue = [request(1, 8, group="e", max_slots=8), request(2, 4, group="e", max_slots=8), request(3, 1)]
    decision = run_pass(hosts_for(running, "a", "b"), queue, SLICES, running)
    assert granted(decision) == ["3", "2"]
    assert decision.ineligible == {"1": "Its experiment has 8 of at most 8 slots, and it needs 8."}
    assert decision.expected["1"].text == "not known; its experiment is at max_slots"


def test_a_request_wider_than_its_cap_waits_for_nothing_and_says_so():
    decision = run_pass([Host("a", 8)], [request(1, 8, group="e", max_slots=2)], SLICES)
    assert decision.ineligible == {
        "1": "Its experiment has 0 of at most 2 slots, and it needs 8. It can never start below that cap: raise "
        "max_slots."
    }
    assert decision.next_due_s is None


def test_a_request_at_its_cap_takes_no_protection_from_others():
    running = [gang("g", "a", range(8), sequence=9), gang("h", "b", range(8), sequence=9)]
    late = {"held_s": 10 * HOUR, "waited_s": 40 * HOUR}
    capped, real = request(1, 16, group="e", max_slots=8, **late), request(2, 16, **late)
    decision = run_pass(hosts_for(running, "a", "b"), [capped, real], SLICES, running)
    assert dict(decision.preemptions) == {"g": "2", "h": "2"}
    assert list(decision.ineligible) == ["1"]


def test_protection_comes_back_with_the_slots_of_the_cap():
    running = [gang("g", "a", range(8), group="e"), gang("h", "b", range(8))]
    waiting = GangRequest("1", 8, sequence=1, group="e", max_slots=8, held_s=10 * HOUR, waited_s=40 * HOUR)
    options = replace(SLICES, preemption="off")
    scheduler = PoolState(hosts_for(running, "a", "b"), options, running)
    scheduler.submit(waiting)
    step(scheduler, 0.0)
    assert scheduler.waiting["1"].level > PROTECTED
    scheduler.end("g")
    scheduler.free_slots.take(Placement({"a": tuple(range(8))}))
    step(scheduler, 60.0)
    assert scheduler.waiting["1"].level <= PROTECTED


def test_a_request_does_not_age_while_it_waits_at_its_cap():
    running = [gang("g", "a", range(8), group="e"), gang("h", "b", range(8))]
    waiting = GangRequest("1", 8, sequence=1, group="e", max_slots=8, held_s=10 * HOUR, waited_s=35 * HOUR)
    scheduler = PoolState(hosts_for(running, "a", "b"), replace(SLICES, preemption="off"), running)
    scheduler.submit(waiting)
    step(scheduler, 0.0)
    waiter = scheduler.waiting["1"]
    step(scheduler, 50 * HOUR)
    assert waiter.waited_at(scheduler.now) == 35 * HOUR
    scheduler.end("g")
    scheduler.free_slots.take(Placement({"a": tuple(range(8))}))
    step(scheduler, 60 * HOUR)
    assert waiter.waited_at(scheduler.now) == 35 * HOUR
    assert scheduler.waiting["1"].level > PROTECTED
    step(scheduler, 60.5 * HOUR)
    assert waiter.waited_at(scheduler.now) == 35.5 * HOUR
    step(scheduler, 61 * HOUR)
    assert scheduler.waiting["1"].level <= PROTECTED


def test_slots_that_are_coming_count_against_the_cap():
    claim = Placement({"a": (0, 1, 2, 3)})
    ending = [gang("g", "a", range(4), is_ending=True)]
    queue = [request(1, 4, group="e", max_slots=4, claim=claim), request(2, 4, group="e", max_slots=4)]
    decision = run_pass(hosts_for(ending, "a", "b"), queue, SLICES, ending)
    assert (granted(decision), list(decision.ineligible)) == ([], ["2"])


def test_a_holder_whose_group_reaches_its_cap_keeps_no_hosts():
    hosts = [Host("a", 8, frozenset(range(4)))]
    queue = [request(1, 8, group="e", max_slots=8, reserved_hosts=("a",)), request(0, 1, group="e", max_slots=8)]
    decision = run_pass(hosts, queue, SLICES)
    assert (granted(decision), decision.reserved) == (["0"], {})


def test_waiting_for_a_shape_that_can_never_fit_does_not_count():
    decision = run_pass([Host("a", 8)], [request(1, 12)], SLICES)
    assert decision.ineligible["1"] == decision.unplaceable["1"].reason


@pytest.mark.parametrize(
    ("waited", "held", "words"),
    [
        (0.0, 0.0, ""),
        (17.99 * HOUR, 0.0, ""),
        (18 * HOUR, 0.0, "not known; may be protected in 18 h"),
        (28.81 * HOUR, 0.0, "not known; may be protected in 7 h 20 min"),
        (35.5 * HOUR, 0.0, "not known; may be protected in 30 min"),
        (LATE, 9 * HOUR, "not known; protected: only requests that waited longer pass or preempt it"),
    ],
)
def test_without_run_times_the_expected_start_is_a_bound_on_the_protection_once_it_is_near(waited, held, words):
    hosts = [Host("a", 8, frozenset({0}))]
    expected = run_pass(hosts, [request(1, 8, waited_s=waited, held_s=held)], SLICES).expected["1"]
    assert (expected.within_s, expected.text) == (None, words)


def test_a_request_beyond_its_limit_whose_share_others_fill_says_so():
    running = [gang("g", "a", range(8), waited_s=90 * HOUR, is_preemptible=False)]
    for waited_h in (37, 60):
        queue = [request(1, 8, waited_s=waited_h * HOUR)]
        decision = run_pass(hosts_for(running, "a"), queue, SLICES, running)
        assert decision.expected["1"].text == "not known; protected once enough requests that waited longer have ended"


def test_with_a_max_runtime_of_all_in_the_way_the_expected_start_is_known():
    running = [gang("g", "a", (0,), ends_in_s=5400.0, is_preemptible=False)]
    expected = run_pass(hosts_for(running, "a"), [request(1, 8)], SLICES, running).expected["1"]
    assert expected.within_s == 5400.0
    assert expected.text.startswith("in 1 h 30 min at the latest, when every gang on its hosts has reached")


@pytest.mark.parametrize(
    ("fields", "due"),
    [
        ({"ran_s": 1700.0}, 100.0),
        ({"ran_s": HOUR, "cost_s": 200.0}, 400.0),
        ({"held_s": HOUR, "is_preemptible": False}, HOUR),
        ({"held_s": 7 * HOUR, "is_preemptible": False}, HOUR),
        ({"is_preemptible": False, "ends_in_s": 90.0}, 90.0),
        ({"is_preemptible": False}, 15 / 16 * 36 * HOUR),
    ],
    ids=["min_run", "20 times the cost", "fresh", "young", "max_runtime", "overdue"],
)
def test_a_decision_is_due_when_time_alone_may_change_it(fields, due):
    running = [gang("g", "a", range(8), **fields)]
    assert run_pass(hosts_for(running, "a"), [request(1, 8)], SLICES, running).next_due_s == pytest.approx(due)


def test_nothing_is_due_while_nothing_waits():
    running = [gang("g", "a", range(4), ran_s=0.0, ends_in_s=10.0)]
    assert run_pass(hosts_for(running, "a"), [request(1, 4)], SLICES, running).next_due_s is None
