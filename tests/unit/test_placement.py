from __future__ import annotations

import subprocess
import sys
import time

import pytest

from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, Unplaceable
from airflow_provider_dtrain.core.scheduling.placement import place
from airflow_provider_dtrain.core.scheduling.subset_sum import cheapest_subset


def hosts_of(*sizes: int) -> list[Host]:
    return [Host(f"h{number}", size) for number, size in enumerate(sizes)]


def sizes_used(found: Placement | Unplaceable) -> list[int]:
    assert isinstance(found, Placement), found
    return sorted((len(indices) for indices in found.slots.values()), reverse=True)


@pytest.mark.parametrize(
    ("slots", "sizes", "used"),
    [
        (10, (1, 5, 10), [10]),
        (16, (8, 7, 7, 4, 4, 4, 4), [4, 4, 4, 4]),
        (16, (8, 8, 4, 4, 4, 4), [8, 8]),
        (8, (4, 4), [4, 4]),
        (1, (8, 8), [1]),
    ],
)
def test_known_answers_with_equal_hosts(slots, sizes, used):
    assert sizes_used(place(GangRequest("r", slots), hosts_of(*sizes))) == used


@pytest.mark.parametrize(("slots", "sizes"), [(16, (5, 5, 5)), (12, (8, 8, 3, 3, 3)), (12, (8, 8)), (63, (32, 32))])
def test_known_answers_that_are_never(slots, sizes):
    found = place(GangRequest("r", slots), hosts_of(*sizes))
    assert isinstance(found, Unplaceable)
    assert found.never


@pytest.mark.parametrize(
    ("slots", "sizes", "used"),
    [
        (4, (2, 1, 1), [2, 1, 1]),
        (63, (32, 32, 16, 16, 8, 8, 4, 4, 2, 2, 1, 1), [32, 16, 8, 4, 2, 1]),
        (9, (6, 5, 4, 1, 1, 1), [5, 4]),
        (16, (12, 8, 8, 4), [8, 8]),
    ],
)
def test_known_answers_with_unequal_hosts(slots, sizes, used):
    assert sizes_used(place(GangRequest("r", slots), hosts_of(*sizes), allow_heterogeneous=True)) == used


def test_two_fours_or_four_twos_share_a_host_of_eight():
    for part in (4, 2):
        held: frozenset[int] = frozenset()
        for number in range(8 // part):
            found = place(GangRequest(str(number), part), [Host("a", 8, held)])
            assert isinstance(found, Placement)
            assert held.isdisjoint(found.slots["a"])
            held |= set(found.slots["a"])
        assert held == frozenset(range(8))


def test_best_fit_leaves_the_fewest_slots_free_and_worst_fit_the_most():
    hosts = [Host("a", 8, frozenset({0, 1})), Host("b", 8), Host("c", 8, frozenset({0, 1, 2, 3}))]
    best, worst = (place(GangRequest("r", 3), hosts, fit=fit) for fit in ("best", "worst"))
    assert best == Placement({"c": (4, 5, 6)})
    assert worst == Placement({"b": (0, 1, 2)})


def test_a_gang_that_fits_one_host_takes_whole_smaller_hosts_when_that_host_is_busy():
    busy = Host("big", 8, frozenset({7}))
    assert sizes_used(place(GangRequest("r", 8), [busy, *hosts_of(4, 4)])) == [4, 4]


def test_it_never_takes_parts_of_several_hosts():
    hosts = [Host("a", 8, frozenset({0})), Host("b", 8, frozenset({0}))]
    found = place(GangRequest("r", 8), hosts)
    assert isinstance(found, Unplaceable)
    assert (found.never, found.missing) == (False, 1)


def test_a_single_host_request_is_not_spread():
    hosts = [Host("big", 8, frozenset({7})), *hosts_of(4, 4)]
    found = place(GangRequest("r", 8, is_single_host=True), hosts)
    assert isinstance(found, Unplaceable)
    assert not found.never
    wide = place(GangRequest("r", 16, is_single_host=True), hosts_of(8, 8))
    assert isinstance(wide, Unplaceable)
    assert wide.never
    assert "at most 8, or drop is_single_host" in wide.reason


@pytest.mark.parametrize("state", ["draining", "drained", "disabled", "unreachable", "lost"])
def test_only_ready_hosts_are_granted_from_and_only_disabled_ones_make_it_impossible(state):
    found = place(GangRequest("r", 1), [Host("a", 8, state=state)])
    assert isinstance(found, Unplaceable)
    assert found.never is (state == "disabled")
    assert state in found.reason.lower()


def test_an_excluded_host_is_not_used_and_does_not_make_it_impossible():
    excluding = GangRequest("r", 2, excluded_hosts=frozenset({"a"}))
    assert place(excluding, [Host("a", 8), Host("b", 8)]) == Placement({"b": (0, 1)})
    alone = place(excluding, [Host("a", 8)])
    assert isinstance(alone, Unplaceable)
    assert not alone.never
    assert "Excluded for this trial: a." in alone.reason


def test_a_disabled_slot_does_not_count_and_a_blocked_one_counts_but_is_not_granted():
    off, stuck = frozenset({0}), frozenset({0})
    assert place(GangRequest("r", 14), [Host("a", 7), Host("b", 8, disabled=off)]) == Placement(
        {
            "a": tuple(range(7)),
            "b": tuple(range(1, 8)),
        }
    )
    blocked = place(GangRequest("r", 8), [Host("a", 8, blocked=stuck)])
    assert isinstance(blocked, Unplaceable)
    assert (blocked.never, blocked.missing) == (False, 1)
    assert "1 slot stuck" in blocked.reason


def test_a_request_without_slots_needs_a_ready_host_only():
    full = Host("a", 1, frozenset({0}))
    assert place(GangRequest("r", 0), [full, Host("b", 8, state="draining")]) == Placement({"a": ()})
    assert place(GangRequest("r", 0), [Host("cpu", 0)]) == Placement({"cpu": ()})
    found = place(GangRequest("r", 0), [Host("b", 8, state="draining")])
    assert isinstance(found, Unplaceable)
    assert not found.never


def test_an_empty_pool_says_so():
    for slots in (0, 1):
        found = place(GangRequest("r", slots), [])
        assert isinstance(found, Unplaceable)
        assert found.never
        assert "no hosts" in found.reason


def test_never_names_the_sizes_that_would_work():
    def reason(slots: int, *sizes: int) -> str:
        found = place(GangRequest("r", slots), hosts_of(*sizes))
        assert isinstance(found, Unplaceable)
        return found.reason

    assert "2 hosts of 8 slots" in reason(12, 8, 8)
    assert "Use 8 or 16" in reason(12, 8, 8)
    assert "(--heterogeneous on would not help: no hosts sum up to 12)" in reason(12, 8, 8)
    assert "or allow hosts of unequal sizes: airflow dtrain pools set POOL --heterogeneous on" in reason(12, 8, 4)
    assert "Use 15" in reason(100, 5, 5, 5)


@pytest.mark.parametrize(("slots", "sizes", "words"), [(7, (4, 2), "Use 6."), (9, (8, 3), "Use 8 or 11.")])
def test_never_names_the_sums_that_would_work_with_unequal_hosts(slots, sizes, words):
    found = place(GangRequest("r", slots), hosts_of(*sizes), allow_heterogeneous=True)
    assert isinstance(found, Unplaceable)
    assert words in found.reason


def test_a_reason_says_how_many_slots_are_missing_and_who_holds_them():
    holders = tuple((index, "trial 7" if index < 2 else "trial 9") for index in range(3))
    hosts = [Host("a", 8, frozenset(range(3)), holders=holders), Host("b", 8)]
    found = place(GangRequest("r", 16), hosts)
    assert isinstance(found, Unplaceable)
    assert found.missing == 3
    assert found.reason == (
        "3 of 16 slots missing, held: 2 by trial 7 and 1 by trial 9. 16 slots on 2 whole hosts needed, "
        "closest are a and b."
    )


def test_the_holder_of_the_missing_slots_comes_within_the_first_100_characters():
    holders = tuple((index, "fight_a.fight_a_train[12] (trial 1904)") for index in range(4))
    hosts = [Host("a-host-with-a-rather-long-name", 4, frozenset(range(4)), holders=holders)]
    found = place(GangRequest("r", 4), hosts)
    assert isinstance(found, Unplaceable)
    words = "4 of 4 slots missing, held by fight_a.fight_a_train[12] (trial 1904)."
    assert words in f"Waiting: Position 1. {found.reason}"[:100]


def test_ties_are_spread_over_hosts_and_are_the_same_in_every_process():
    script = (
        "from airflow_provider_dtrain.core.scheduling.placement import place\n"
        "from airflow_provider_dtrain.core.scheduling.model import *\n"
        "hosts = [Host(f'h{n}', 8) for n in range(20)]\n"
        "print([sorted(place(GangRequest(str(r), 16), hosts).slots) for r in range(20)])"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
    hosts = [Host(f"h{number}", 8) for number in range(20)]
    chosen = {next(iter(place(GangRequest(str(request), 1), hosts).slots)) for request in range(200)}
    assert len(chosen) >= 15


def test_the_subset_search_stays_bounded_and_exact_on_hard_sizes():
    sizes = [(997 - 2 * step, [0] * 20) for step in range(200)]
    begin = time.monotonic()
    counts = cheapest_subset(sizes, 100_003)
    assert time.monotonic() - begin < 5
    assert counts is not None
    assert sum(size * number for (size, _), number in zip(sizes, counts, strict=True)) == 100_003
    assert cheapest_subset([(8, [0] * 500), (6, [0] * 500)], 4001) is None
