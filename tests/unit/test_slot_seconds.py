"""Seconds of slots: held, idle, and without gangs because the host was not ready."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.slot_seconds import SlotSeconds, slot_seconds

DAY = (0.0, 100.0)


def seconds(slots, held, ready, period=DAY) -> tuple[float, float, float]:
    found = slot_seconds(slots, held, ready, period)
    return found.held, found.idle, found.away


def test_held_and_idle_add_up_to_the_time_of_all_slots() -> None:
    assert seconds(2, [(10, 30), (50, 60)], [(0, 100)]) == (30, 170, 0)
    assert seconds(0, [], [(0, 100)]) == (0, 0, 0)
    assert slot_seconds(2, [], [], DAY) == SlotSeconds(held=0, idle=0, away=200)


def test_what_is_outside_of_the_period_does_not_count() -> None:
    assert seconds(1, [(-50, 10), (95, 900), (200, 300), (-9, -1)], [(-1000, 50), (90, 1000)]) == (15, 45, 40)
    assert seconds(1, [(0, 9)], [(0, 9)], period=(5, 5)) == (0, 0, 0)


def test_a_gang_that_finishes_on_a_draining_host_is_held_and_not_away() -> None:
    assert seconds(2, [(0, 70)], [(0, 40)]) == (70, 40, 90)


def test_slots_that_a_host_has_lost_and_clocks_that_ran_backwards_give_no_negative_time() -> None:
    assert seconds(1, [(0, 100), (0, 100)], [(0, 100)]) == (200, 0, 0)
    assert seconds(1, [(60, 40)], [(90, 80)]) == (0, 0, 100)


@given(
    st.lists(st.lists(st.integers(0, 20), max_size=6), min_size=1, max_size=4),
    st.lists(st.integers(0, 20), max_size=6),
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_the_parts_are_those_of_a_count_second_by_second(edges, changes, ends) -> None:
    def spans(times):
        ordered = sorted(set(times))
        return list(zip(ordered[::2], ordered[1::2], strict=False))

    period = (min(ends), max(ends))
    of_slots, ready = [spans(one) for one in edges], spans(changes)

    def is_in(second, some):
        return any(since <= second < until for since, until in some)

    counts = [0, 0, 0]
    for second in range(*period):
        for held in of_slots:
            counts[0 if is_in(second, held) else 1 if is_in(second, ready) else 2] += 1
    assert list(seconds(len(edges), [one for some in of_slots for one in some], ready, period)) == counts
