"""Ranks that are called slow, and ranks that are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_provider_dtrain.core.series.step_times import Pace, median_of, slow_ranks

STEP_S = 0.2


def pace(moments: Sequence[float | None], *, steps: int = 300, step_s: float = STEP_S) -> Pace:
    return Pace(step_s=step_s, busy_s=median_of(moments) or 0.0, steps=steps, moments=moments)


def test_a_rank_that_is_slow_all_the_time_is_named() -> None:
    fast = pace([0.1] * 6)
    assert slow_ranks({0: fast, 1: pace([0.19] * 6)}) == [1]
    assert slow_ranks({0: pace([0.15] * 6), 1: fast, 2: fast, 3: pace([0.16] * 6), 4: fast}) == [3, 0]


def test_a_short_run_names_no_rank() -> None:
    assert slow_ranks({0: pace([0.19] * 6, steps=299), 1: pace([0.05] * 6, steps=299)}) == []
    assert slow_ranks({0: pace([0.19] * 6), 1: pace([0.05] * 6, steps=12)}) == [], "each rank has done enough"
    assert slow_ranks({0: pace([0.19] * 2), 1: pace([0.05] * 2)}) == []


def test_moments_that_only_some_ranks_have_measured_do_not_count() -> None:
    gaps = [0.19, None, 0.19, None, 0.19, None, 0.19, None]
    assert slow_ranks({0: pace(gaps), 1: pace([0.05] * 8)}) == [0]
    assert slow_ranks({0: pace(gaps), 1: pace([None, 0.05, None, *[0.05] * 5])}) == []


def test_a_rank_that_is_slow_now_and_then_is_not_named() -> None:
    mixed = [0.19, 0.19, 0.19, 0.19, 0.1, 0.1]
    assert slow_ranks({0: pace(mixed), 1: pace([0.1] * 6)}) == []
    assert slow_ranks({0: pace([0.19] * 5 + [0.1]), 1: pace([0.1] * 6)}) == [0]


@pytest.mark.parametrize("busy", [0.11, 0.12])
def test_a_small_difference_names_no_rank(busy: float) -> None:
    assert slow_ranks({0: pace([busy] * 6), 1: pace([0.1] * 6), 2: pace([0.1] * 6)}) == []


def test_ranks_that_mostly_exchange_gradients_are_not_named() -> None:
    assert slow_ranks({0: pace([0.002] * 6), 1: pace([0.001] * 6), 2: pace([0.001] * 6)}) == []


def test_a_gang_without_steps_names_no_rank() -> None:
    assert slow_ranks({}) == []
    assert slow_ranks({0: pace([None] * 6), 1: pace([None] * 6)}) == []
