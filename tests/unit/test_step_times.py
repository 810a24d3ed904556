"""Ranks that are called slow, and ranks that are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from airflow_provider_dtrain.core.config.sections import Profiling
from airflow_provider_dtrain.core.series.step_times import (
    FIRST_STEPS,
    Pace,
    SlowRule,
    compare,
    median_of,
    pace_of,
    ratios,
    slow_ranks,
    slow_rule,
)

STEP_S, BUCKET_S = 0.2, 10
#: Six time buckets are a minute, that of the rule.
RULE = SlowRule()


def pace(moments: Sequence[float | None], *, step_s: float = STEP_S) -> Pace:
    return Pace(step_s=step_s, busy_s=median_of(moments) or 0.0, moments=moments)


def slow(paces: Mapping[int, Pace], rule: SlowRule = RULE) -> list[int]:
    return slow_ranks(paces, rule, BUCKET_S)


def test_the_defaults_of_the_rule_are_those_of_the_configuration() -> None:
    profiling = Profiling()
    assert (profiling.straggler_share, profiling.straggler_after) == (RULE.share, RULE.after_s)
    assert slow_rule(vars(profiling)) == slow_rule({}) == RULE
    assert slow_rule({"straggler_share": 2, "straggler_after": 300}) == SlowRule(share=2.0, after_s=300.0)


def test_a_rank_that_is_slow_all_the_time_is_named() -> None:
    fast = pace([0.1] * 6)
    assert slow({0: fast, 1: pace([0.19] * 6)}) == [1]
    assert slow({0: pace([0.15] * 6), 1: fast, 2: fast, 3: pace([0.16] * 6), 4: fast}) == [3, 0]


def test_a_short_run_names_no_rank() -> None:
    assert slow({0: pace([0.19] * 5), 1: pace([0.05] * 5)}) == [], "less than the time of the rule"
    assert slow({0: pace([0.19] * 2), 1: pace([0.05] * 2)}, SlowRule(after_s=20)) == [], "too few moments"
    assert slow({0: pace([0.19] * 3), 1: pace([0.05] * 3)}, SlowRule(after_s=30)) == [0]


def test_the_share_is_that_of_the_rule() -> None:
    paces = {0: pace([0.15] * 6), 1: pace([0.1] * 6), 2: pace([0.1] * 6)}
    assert slow(paces) == slow(paces, SlowRule(share=1.4)) == [0]
    assert slow(paces, SlowRule(share=1.6)) == []


def test_moments_that_only_some_ranks_have_measured_do_not_count() -> None:
    gaps = [0.19, None, 0.19, None, 0.19, None, 0.19, None]
    assert slow({0: pace(gaps), 1: pace([0.05] * 8)}) == [0]
    assert slow({0: pace(gaps), 1: pace([None, 0.05, None, *[0.05] * 5])}) == []


def test_a_rank_that_is_slow_now_and_then_is_not_named() -> None:
    mixed = [0.19, 0.19, 0.19, 0.19, 0.1, 0.1]
    assert slow({0: pace(mixed), 1: pace([0.1] * 6)}) == []
    assert slow({0: pace([0.19] * 5 + [0.1]), 1: pace([0.1] * 6)}) == [0]


def test_ranks_that_are_slow_by_turns_are_not_named() -> None:
    assert slow({0: pace([0.19, 0.1] * 6), 1: pace([0.1, 0.19] * 6)}) == []


def test_a_phase_of_a_single_rank_names_none() -> None:
    assert slow({0: pace([0.5, *[0.1] * 11]), 1: pace([0.1] * 12), 2: pace([0.1] * 12)}) == [], "it validates"
    assert slow({rank: pace([0.5, 0.5, *[0.1] * 10]) for rank in range(4)}) == [], "all of them do"


@pytest.mark.parametrize("busy", [0.11, 0.12])
def test_a_small_difference_names_no_rank(busy: float) -> None:
    assert slow({0: pace([busy] * 6), 1: pace([0.1] * 6), 2: pace([0.1] * 6)}) == []


def test_ranks_that_mostly_exchange_gradients_are_not_named() -> None:
    assert slow({0: pace([0.002] * 6), 1: pace([0.001] * 6), 2: pace([0.001] * 6)}) == []


def test_a_gang_without_steps_and_a_rank_alone_name_no_rank() -> None:
    assert slow({}) == []
    assert slow({0: pace([None] * 6), 1: pace([None] * 6)}) == []
    assert slow({0: pace([0.1] * 6)}) == []
    assert ratios({0: pace([0.1] * 6)}) == {0: None}


def test_a_gang_without_measured_exchanges_names_no_rank() -> None:
    """A program without DistributedDataParallel."""
    counts = [50] * 12
    found = {rank: pace_of([step] * 12, [None] * 12, counts) for rank, step in ((0, 0.4), (1, 0.1))}
    assert slow({rank: one for rank, one in found.items() if one is not None}) == []


def test_a_rank_is_compared_with_the_median_of_the_others() -> None:
    two = {0: pace([0.1] * 6), 1: pace([0.13] * 6)}
    assert compare(two, RULE, BUCKET_S)[1].ratio == pytest.approx(1.3)
    assert ratios(two) == pytest.approx({0: 0.1 / 0.13, 1: 1.3})
    three = {**two, 2: pace([0.2] * 6)}
    assert ratios(three) == pytest.approx({0: 0.1 / 0.165, 1: 0.13 / 0.15, 2: 0.2 / 0.115})


def test_cost_and_start_of_a_slow_rank_are_known() -> None:
    found = compare({0: pace([0.1, *[0.18] * 7]), 1: pace([0.1] * 8)}, RULE, BUCKET_S)
    assert found[0].since == 1
    assert found[0].cost == pytest.approx(0.08 / STEP_S)
    assert found[0].slow_part == 7 / 8
    assert (found[1].since, found[1].slow_part, found[1].is_slow) == (None, 0, False)


def test_the_first_ten_steps_do_not_count() -> None:
    found = pace_of([1.0] * 4, [0.1] * 4, [5, 5, 5, 5])
    assert found is not None
    assert found.moments == [None, None, 0.9, 0.9]
    later = pace_of([1.0] * 2, [0.1] * 2, [5, 5], before=FIRST_STEPS)
    assert later is not None
    assert later.moments == [0.9, 0.9]
