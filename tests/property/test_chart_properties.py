"""Reduction of curves and standings at rungs hold for all inputs."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.core.reduction import even, reduced
from airflow_provider_dtrain.core.search.asha import decide, rank_value
from airflow_provider_dtrain.core.search.expected_end import expected_end
from airflow_provider_dtrain.core.search.standings import Entered, metric_of, standings

NOW = datetime(2026, 1, 2, tzinfo=UTC)
VALUES = st.lists(st.one_of(st.none(), st.floats(width=32)), max_size=300)


@pytest.mark.nightly
def test_a_curve_of_ten_million_points_is_reduced_to_what_a_chart_can_draw():
    y = range(10_000_000, 0, -1)
    kept = reduced(y, 2000)
    assert len(kept) <= 2000
    assert (kept[0], kept[-1]) == (0, len(y) - 1)


@given(VALUES, st.integers(4, 100))
def test_a_reduced_curve_keeps_its_ends_and_extremes_in_order(y, most):
    kept = reduced(y, most)
    assert len(kept) <= max(most, 0)
    assert kept == sorted(set(kept))
    assert len(y) == 0 or (kept[0], kept[-1]) == (0, len(y) - 1)
    known = [value for value in y if value is not None and math.isfinite(value)]
    shown = [y[index] for index in kept if y[index] is not None and math.isfinite(y[index])]
    if known:
        assert (min(shown), max(shown)) == (min(known), max(known))


@given(st.integers(-(10**18), 10**18), st.integers(0, 10**18), st.integers(2, 500))
def test_even_steps_go_from_the_first_to_the_last(first, length, count):
    steps = even(first, first + length, count)
    assert (steps[0], steps[-1]) == (first, first + length)
    assert len(steps) <= count
    assert steps == sorted(set(steps))


@given(st.lists(st.one_of(st.none(), st.floats(-100, 100)), max_size=60), st.integers(2, 5), st.booleans())
def test_a_report_continued_exactly_when_it_beat_the_cut_off_of_its_time(metrics, divisor, smaller):
    values = [rank_value(metric, smaller) for metric in metrics]
    entries = [
        Entered(value=value, order=index, at=NOW + timedelta(seconds=index)) for index, value in enumerate(values)
    ]
    for index, standing in enumerate(standings(entries, divisor)):
        before = sum(other <= values[index] for other in values[:index])
        told = decide(before, index + 1, divisor, is_top=False)
        beats = standing.cut_off is None or values[index] < standing.cut_off
        assert (told == "continue") == beats
        assert (standing.place, standing.of) == (before + 1, index + 1)
        cut_off = metric_of(standing.cut_off, smaller_is_better=smaller)
        assert cut_off is None or cut_off in metrics


def test_an_entry_counts_only_until_its_trial_was_cleared():
    gone = Entered(value=1.0, order=0, at=NOW, left_at=NOW + timedelta(seconds=5))
    late = Entered(value=2.0, order=1, at=NOW + timedelta(seconds=6))
    soon = Entered(value=2.0, order=2, at=NOW + timedelta(seconds=4))
    assert [(one.place, one.of) for one in standings([gone, late, soon], 2)] == [(1, 1), (2, 2), (2, 2)]


@given(
    st.lists(st.floats(-10, 1e9), max_size=20),
    st.lists(st.floats(-10, 1e9), max_size=20),
    st.integers(-3, 10**6),
)
def test_an_expected_end_is_never_in_the_past(ended, running, remaining):
    found = expected_end(NOW, ended, running, remaining=remaining)
    assert found is None or found >= NOW


def test_trials_to_come_are_divided_among_those_that_run_at_a_time():
    assert expected_end(NOW, [100, 100], [50, 0], remaining=3) == NOW + timedelta(seconds=225)
    assert expected_end(NOW, [100], [50], remaining=3) is None
    assert expected_end(NOW, [100, 100], [], remaining=3) is None
