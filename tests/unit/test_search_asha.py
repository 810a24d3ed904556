"""Rungs, brackets and decisions: known answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from airflow_provider_dtrain.core.config.brackets import brackets, floor_log, most_rungs, rung_lengths
from airflow_provider_dtrain.core.search.asha import LAST, advance, decide, rank_value
from testbed.rungs import Rungs


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ((3, 9, 3), [1, 3, 9]),
        ((4, 10, 2), [1, 2, 5, 10]),
        ((3, 900, 3), [100, 300, 900]),
        ((1, 7, 4), [7]),
        ((3, 2, 4), [1, 1, 2]),
        ((2, 10**18 + 3, 10), [10**17, 10**18 + 3]),
    ],
)
def test_rungs_lie_at_a_share_of_the_length(given: tuple[int, int, int], lengths: list[int]) -> None:
    assert rung_lengths(*given) == lengths


@pytest.mark.parametrize("given", [(0, 9, 3), (3, 0, 3), (3, 9, 1)])
def test_lengths_of_nothing_are_refused(given: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="or more is accepted"):
        rung_lengths(*given)


def test_logarithms_are_exact_where_floats_are_not() -> None:
    assert floor_log(243, 3) == 5
    assert [floor_log(n, 10) for n in (1, 9, 10, 999, 1000)] == [0, 0, 1, 2, 3]
    for base in range(2, 12):
        for exponent in range(1, 40):
            assert floor_log(base**exponent, base) == exponent
            assert floor_log(base**exponent - 1, base) == exponent - 1


@pytest.mark.parametrize(
    ("trials", "divisor", "rungs", "expected"),
    [
        (20, 3, [3, 2, 1], [12, 5, 3]),
        (50, 3, [4, 3], [35, 15]),
        (50, 4, [3, 2], [37, 13]),
        (100, 4, [4, 3, 2], [70, 22, 8]),
        (100, 4, [2, 4, 3], [70, 22, 8]),
        (3, 4, [1, 1, 1], [1, 1, 1]),
        (1, 2, [1], [1]),
    ],
)
def test_brackets_share_the_trials(trials: int, divisor: int, rungs: list[int], expected: list[int]) -> None:
    found = brackets("standard", trials, 1000, divisor=divisor, bracket_rungs=rungs)
    assert found == list(zip(sorted(rungs, reverse=True), expected, strict=True))


@pytest.mark.parametrize(
    ("mode", "rungs"), [("aggressive", [5]), ("standard", [5, 4, 3]), ("conservative", [5, 4, 3, 2, 1])]
)
def test_the_mode_says_which_brackets_there_are(mode: Any, rungs: list[int]) -> None:
    assert [count for count, _ in brackets(mode, 10_000, 10_000)] == rungs


@pytest.mark.parametrize(
    ("trials", "length", "divisor", "limit", "most"),
    [(10**6, 243, 3, 9, 6), (10**6, 242, 3, 9, 5), (243, 10**6, 3, 9, 6), (10**6, 10**6, 3, 5, 5), (1, 1, 2, 5, 1)],
)
def test_rungs_are_limited_by_length_trials_and_the_configuration(
    trials: int, length: int, divisor: int, limit: int, most: int
) -> None:
    assert most_rungs(trials, length, divisor, limit) == most
    found = brackets("aggressive", trials, length, divisor=divisor, max_rungs=limit)
    assert found == [(most, trials)]


@pytest.mark.parametrize(
    ("trials", "rungs", "words"),
    [
        (2, [1, 1, 1], "3 brackets, which leave none of max_trials 2"),
        (9, [0], "0; 1 or more"),
        (0, [], "max_trials is 0"),
    ],
)
def test_brackets_without_a_trial_are_refused(trials: int, rungs: list[int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        brackets("standard", trials, 9, divisor=3, bracket_rungs=rungs)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="aggressive, standard or conservative"):
        brackets("bold", 9, 9)  # type: ignore[arg-type]


def test_a_trial_goes_on_when_it_is_among_the_best_share() -> None:
    assert [decide(index, 12, 4, is_top=False) for index in (0, 2, 3, 11)] == ["continue", "continue", "stop", "stop"]
    assert [decide(index, 3, 4, is_top=False) for index in (0, 1)] == ["continue", "stop"]
    assert decide(11, 12, 4, is_top=True) == "complete"


def test_reports_in_order_of_arrival_get_the_known_answers() -> None:
    rungs = Rungs(3, 9, 3)
    first = [rungs.report(trial, 1, metric) for trial, metric in enumerate([5.0, 6.0, 4.0, 4.5, 3.0, 3.5])]
    assert first == ["continue", "stop", "continue", "stop", "continue", "continue"]
    assert rungs.entries(0) == [4, 5, 2, 3, 0, 1]
    assert [rungs.report(trial, 2, 1.0) for trial in (0, 2)] == ["continue", "continue"]
    assert [rungs.report(0, 3, 2.0), rungs.report(2, 3, 3.0), rungs.report(4, 3, 1.5)] == [
        "continue",
        "stop",
        "continue",
    ]
    assert [rungs.report(0, 9, 9.0), rungs.report(4, 9, 1.0)] == ["complete", "complete"]
    assert rungs.entries(2) == [4, 0]


def test_one_report_can_enter_several_rungs_until_one_stops_it() -> None:
    rungs = Rungs(3, 9, 3)
    assert rungs.report(0, 9, 1.0) == "complete"
    assert rungs.report(1, 3, 2.0) == "stop"
    assert [rungs.entries(rung) for rung in range(3)] == [[0, 1], [0], [0]]


def test_rungs_of_the_same_length_are_entered_together() -> None:
    rungs = Rungs(3, 2, 4)
    assert rungs.lengths == (1, 1, 2)
    assert rungs.report(0, 1, 1.0) == "continue"
    assert [rungs.entries(rung) for rung in range(3)] == [[0], [0], []]


def test_a_larger_metric_can_be_the_better_one() -> None:
    rungs = Rungs(2, 4, 2, smaller_is_better=False)
    assert [rungs.report(trial, 2, metric) for trial, metric in enumerate([0.1, 0.9, 0.5])] == [
        "continue",
        "continue",
        "stop",
    ]
    assert rungs.entries(0) == [1, 2, 0]


def test_of_equal_metrics_the_earlier_ranks_first() -> None:
    rungs = Rungs(2, 4, 4)
    assert [rungs.report(trial, 1, 0.0) for trial in range(8)] == ["continue", *["stop"] * 7]
    assert rungs.entries(0) == list(range(8))


@pytest.mark.parametrize("metric", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_what_is_no_finite_number_ranks_last(metric: float, smaller_is_better: bool) -> None:
    rungs = Rungs(2, 4, 2, smaller_is_better=smaller_is_better)
    for trial, value in enumerate([1e300, metric, -1e300, metric]):
        rungs.report(trial, 2, value)
    assert rungs.entries(0)[2:] == [1, 3]
    assert rank_value(metric, smaller_is_better) == LAST


def test_a_late_report_gets_the_last_answer_and_changes_nothing() -> None:
    rungs = Rungs(3, 9, 3)
    rungs.report(0, 1, 1.0)
    assert rungs.report(1, 1, 2.0) == "stop"
    assert [rungs.report(1, 1, 0.0), rungs.report(1, 9, 0.0)] == ["stop", "stop"]
    assert rungs.report(0, 9, 1.0) == "complete"
    assert rungs.report(0, 10, 0.0) == "complete"
    assert [rungs.entries(rung) for rung in range(3)] == [[0, 1], [0], [0]]


def test_a_repeated_report_enters_no_rung_twice() -> None:
    rungs = Rungs(3, 9, 3)
    assert [rungs.report(0, length, 1.0) for length in (1, 1, 2, 1)] == ["continue"] * 4
    assert [rungs.entries(rung) for rung in range(3)] == [[0], [], []]


def test_a_failed_trial_counts_as_the_last_of_the_rung_it_waited_for() -> None:
    rungs = Rungs(2, 4, 2)
    rungs.report(0, 2, 5.0)
    rungs.fail(1)
    rungs.fail(1)
    rungs.fail(0)
    assert rungs.report(1, 2, 0.0) == "stop"
    assert [rungs.entries(rung) for rung in range(2)] == [[0, 1], [0]]
    # With the failed trial the rung has four entries, so the second-best one continues.
    assert [rungs.report(2, 2, 9.0), rungs.report(3, 2, 7.0)] == ["stop", "continue"]


def test_a_trial_that_ended_by_itself_stays_where_it_was() -> None:
    rungs = Rungs(2, 4, 2)
    rungs.report(0, 2, 1.0)
    rungs.finish(0)
    rungs.fail(0)
    assert rungs.report(0, 4, 0.0) == "complete"
    assert [rungs.entries(rung) for rung in range(2)] == [[0], []]


def test_a_cleared_trial_leaves_all_rungs_and_begins_anew() -> None:
    rungs = Rungs(2, 4, 2)
    answers = [rungs.report(0, 4, 1.0), rungs.report(1, 2, 2.0)]
    rungs.clear(0)
    rungs.clear(7)
    assert answers == ["complete", "stop"]
    assert [rungs.entries(rung) for rung in range(2)] == [[1], []]
    assert rungs.report(1, 2, 0.0) == "stop"
    assert rungs.report(0, 2, 3.0) == "stop"
    rungs.clear(1)
    assert rungs.report(1, 2, 1.0) == "continue"
    assert rungs.entries(0) == [1, 0]


def test_a_store_decides_by_counting_what_the_rungs_decide() -> None:
    """As a database does it: two counts for each rung that is entered."""
    lengths, rungs, waits = rung_lengths(3, 9, 3), Rungs(3, 9, 3), dict.fromkeys(range(40), 0)
    rows: list[tuple[int, float]] = []

    def standing(rung: int, value: float) -> tuple[int, int]:
        return sum(row[0] == rung and row[1] <= value for row in rows), sum(row[0] == rung for row in rows)

    for trial in range(40):
        for length in (1, 3, 9):
            metric = (trial * 17 % 23) + length
            step = advance(
                lengths,
                3,
                rung=waits[trial],
                length=length,
                value=rank_value(metric),
                standing=standing,
            )
            rows.extend((rung, rank_value(metric)) for rung in step.entered)
            waits[trial] = step.rung
            assert step.decision == rungs.report(trial, length, metric)
            if step.decision != "continue":
                break
    assert sum(row[0] == 2 for row in rows) == len(rungs.entries(2)) > 0
