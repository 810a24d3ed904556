from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dtrain.core.scheduling.layouts import GangLayout, layouts
from airflow_provider_dtrain.core.scheduling.model import GangRequest
from tests.support.budgets import budget
from tests.support.naive_layouts import EQUAL, UNEQUAL, ways


def sizes_of(slots: int, hosts: tuple[int, ...], *, unequal: bool = False, **fields) -> list[tuple[int, ...]]:
    return [layout.sizes for layout in layouts(GangRequest("r", slots, **fields), Counter(hosts), unequal)]


@pytest.mark.parametrize(
    ("slots", "hosts", "unequal", "expected"),
    [
        (8, (8, 8, 4, 4, 2), False, [(), (4,)]),
        (16, (16, 8, 8, 4, 4, 4, 4), True, [(), (8,), (4,), (16, 8, 4)]),
        (12, (8, 4, 0), True, [(), (8, 4)]),
        (12, (8, 4, 0), False, [()]),
        (13, (8, 4, 2), True, [()]),
        (8, (4,), True, [()]),
    ],
)
def test_one_host_comes_first_then_equal_hosts_by_size_then_unequal_ones(slots, hosts, unequal, expected):
    assert sizes_of(slots, hosts, unequal=unequal) == expected


def test_a_request_for_a_single_host_gets_one_layout():
    assert sizes_of(8, (4, 4, 2, 2, 2, 2), unequal=True, is_single_host=True) == [()]


def test_the_sizes_are_not_read_before_one_host_was_tried():
    class Unread(Counter[int]):
        def __iter__(self):
            raise AssertionError("the sizes were read")

    found = layouts(GangRequest("r", 8), Unread((4, 4)), True)
    assert next(found) == GangLayout(8)
    with pytest.raises(AssertionError):
        next(found)


@settings(max_examples=budget(200), deadline=None)
@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 16), st.booleans())
def test_the_layouts_of_whole_hosts_are_those_of_brute_force(hosts, slots, unequal):
    whole = {f"h{number}": size for number, size in enumerate(hosts)}
    allowed = list(ways(GangRequest("r", slots), {}, whole, unequal))
    found = [sizes for sizes in sizes_of(slots, tuple(hosts), unequal=unequal) if sizes]
    assert {sizes[0] for sizes in found if len(sizes) == 1} == {whole[w.names[0]] for w in allowed if w.rule == EQUAL}
    if any(way.rule == UNEQUAL for way in allowed):
        assert len(found[-1]) > 1
    elif not any(way.rule == EQUAL for way in allowed):
        assert slots in whole.values() or not found


@settings(max_examples=budget(200), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=6), st.integers(1, 16))
def test_the_chosen_hosts_of_a_layout_cost_the_least_of_all_sets_that_sum_up(hosts, slots):
    whole = {f"h{number}": size for number, (size, _) in enumerate(hosts)}
    costs = {f"h{number}": cost for number, (_, cost) in enumerate(hosts)}
    allowed = list(ways(GangRequest("r", slots), {}, whole, True))

    def rows(size: int) -> list[tuple[int, tuple[int, str]]]:
        return [(costs[name], (0, name)) for name in whole if whole[name] == size]

    for layout in layouts(GangRequest("r", slots), Counter(whole.values()), True):
        chosen = [name for _, (_, name) in layout.cheapest(rows)]
        if layout.is_whole and slots not in whole.values():
            sets = [way.names for way in allowed if {whole[name] for name in way.names} <= set(layout.sizes)]
            assert tuple(sorted(chosen)) in sets
            assert sum(map(costs.get, chosen)) == min(sum(map(costs.get, names)) for names in sets)
