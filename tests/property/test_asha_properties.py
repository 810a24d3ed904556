"""With reports in any order, rungs lose no entry, count none twice, and continue the right share of trials."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_dtrain.core.config.brackets import brackets, floor_log, rung_lengths
from airflow_provider_dtrain.core.hyperparameters.space import grid, grid_size, sample
from airflow_provider_dtrain.core.search.asha import LAST, rank_value
from testbed.rungs import Rungs
from tests.support.budgets import budget

METRICS = st.one_of(
    st.integers(-3, 3).map(float), st.floats(allow_nan=False), st.sampled_from([math.nan, math.inf, -math.inf])
)
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(2, 4))


@given(st.integers(1, 8), st.integers(1, 10**6), st.integers(2, 9))
def test_rungs_grow_and_end_at_the_length(count: int, length: int, divisor: int) -> None:
    lengths = rung_lengths(count, length, divisor)
    assert len(lengths) == count
    assert lengths == sorted(lengths)
    assert (lengths[0] >= 1, lengths[-1]) == (True, length)


@given(
    st.sampled_from(["aggressive", "standard", "conservative"]),
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    st.integers(2, 10),
    st.integers(1, 8),
)
def test_brackets_use_every_trial_once(mode: Any, trials: int, length: int, divisor: int, limit: int) -> None:
    found = brackets(mode, trials, length, divisor=divisor, max_rungs=limit)
    assert sum(share for _, share in found) == trials
    assert all(share >= 1 for _, share in found)
    rungs = [count for count, _ in found]
    assert rungs == sorted(set(rungs), reverse=True)
    assert all(divisor ** (count - 1) <= min(length, trials) for count in rungs)


@given(st.integers(1, 10**40), st.integers(2, 50))
def test_a_logarithm_is_between_two_powers(number: int, base: int) -> None:
    exponent = floor_log(number, base)
    assert base**exponent <= number < base ** (exponent + 1)


@given(SHAPES, st.booleans(), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 45), METRICS), max_size=60))
def test_any_order_of_arrival_keeps_every_trial_once_per_rung(
    shape: tuple[int, int, int], smaller: bool, reports: list[tuple[int, int, float]]
) -> None:
    count, length, divisor = shape
    rungs = Rungs(count, length, divisor, smaller)
    last: dict[int, str] = {}
    for trial, units, metric in reports:
        before = [rungs.entries(rung) for rung in range(count)]
        answer = rungs.report(trial, units, metric)
        if last.get(trial, "continue") != "continue":
            assert answer == last[trial]
            assert [rungs.entries(rung) for rung in range(count)] == before
        last[trial] = answer
    entries = [rungs.entries(rung) for rung in range(count)]
    assert all(len(set(rung)) == len(rung) for rung in entries)
    for lower, higher in zip(entries, entries[1:], strict=False):
        assert set(higher) <= set(lower)
    told = Counter(last.values())
    assert told["complete"] == len(entries[-1])
    reached = {trial for trial, units, _ in reports if units >= rungs.lengths[0]}
    assert set(entries[0]) == reached


@given(st.integers(2, 5), st.lists(METRICS, min_size=1, max_size=80))
def test_only_the_share_goes_on_that_was_allowed_at_each_moment(divisor: int, metrics: list[float]) -> None:
    rungs = Rungs(2, divisor, divisor)
    seen: list[tuple[float, int]] = []
    for trial, metric in enumerate(metrics):
        seen.append((rank_value(metric), trial))
        index = sorted(seen).index((rank_value(metric), trial))
        expected = "continue" if index < max(1, len(seen) // divisor) else "stop"
        assert rungs.report(trial, 1, metric) == expected
    assert rungs.entries(0) == [trial for _, trial in sorted(seen)]


@given(st.integers(2, 5), st.lists(st.integers(-999, 999), min_size=1, max_size=80, unique=True))
def test_no_more_than_the_share_goes_on_when_the_best_come_last_or_first(divisor: int, metrics: list[int]) -> None:
    """With the best first the fewest trials continue: exactly the share of the best. Other orders continue more."""
    best_first = Rungs(2, divisor, divisor)
    answers = [best_first.report(trial, 1, float(metric)) for trial, metric in enumerate(sorted(metrics))]
    assert 1 <= answers.count("continue") <= math.ceil(len(metrics) / divisor)
    best_last = Rungs(2, divisor, divisor)
    worst = [best_last.report(trial, 1, float(metric)) for trial, metric in enumerate(sorted(metrics, reverse=True))]
    assert worst.count("continue") == len(metrics)
    any_order = Rungs(2, divisor, divisor)
    through = [
        metric for trial, metric in enumerate(metrics) if any_order.report(trial, 1, float(metric)) == "continue"
    ]
    assert len(through) >= 1
    assert min(metrics) in through


class Searches(RuleBasedStateMachine):
    """Trials of one bracket report, fail, end and are cleared, compared with a model that sorts from scratch."""

    def __init__(self) -> None:
        super().__init__()
        self.rungs = Rungs(3, 9, 3)
        #: (rung, value, order, trial), in the order in which they entered.
        self.rows: list[tuple[int, float, int, int]] = []
        self.waits: dict[int, int] = {}
        self.ended: dict[int, str] = {}
        self.order = 0

    def enter(self, trial: int, rung: int, value: float) -> str:
        self.rows.append((rung, value, self.order, trial))
        self.order += 1
        ranks = sorted(row[1:] for row in self.rows if row[0] == rung)
        index = [row[2] for row in ranks].index(trial)
        if rung == 2:
            return "complete"
        return "continue" if index < max(1, len(ranks) // 3) else "stop"

    @rule(trial=st.integers(0, 9), length=st.integers(0, 10), metric=METRICS)
    def reports(self, trial: int, length: int, metric: float) -> None:
        answer = self.ended.get(trial, "continue")
        while answer == "continue" and length >= 3 ** self.waits.get(trial, 0):
            rung = self.waits.get(trial, 0)
            answer = self.enter(trial, rung, rank_value(metric))
            self.waits[trial] = rung + 1
        if answer != "continue":
            self.ended[trial] = answer
        assert self.rungs.report(trial, length, metric) == answer

    @rule(trial=st.integers(0, 9))
    def fails(self, trial: int) -> None:
        if trial not in self.ended:
            self.enter(trial, self.waits.get(trial, 0), LAST)
            self.ended[trial] = "stop"
        self.rungs.fail(trial)

    @rule(trial=st.integers(0, 9))
    def ends_by_itself(self, trial: int) -> None:
        self.ended.setdefault(trial, "complete")
        self.rungs.finish(trial)

    @precondition(lambda self: self.rows)
    @rule(trial=st.integers(0, 9))
    def is_cleared(self, trial: int) -> None:
        self.rows = [row for row in self.rows if row[3] != trial]
        self.waits.pop(trial, None)
        self.ended.pop(trial, None)
        self.rungs.clear(trial)

    @invariant()
    def rungs_hold_what_entered_them(self) -> None:
        for rung in range(3):
            expected = [row[3] for row in sorted(self.rows, key=lambda row: row[1:3]) if row[0] == rung]
            assert self.rungs.entries(rung) == expected
            assert len(set(expected)) == len(expected)


TestSearches = Searches.TestCase
TestSearches.settings = settings(max_examples=budget(60), stateful_step_count=40, deadline=None)

LEAVES = st.one_of(
    st.tuples(st.integers(-50, 50), st.integers(1, 60), st.integers(1, 4)).map(
        lambda given: {"type": "int", "minval": given[0], "maxval": given[0] + given[1], "count": given[2]}
    ),
    st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 4)).map(
        lambda given: {"type": "double", "minval": given[0], "maxval": given[0] + given[1], "count": given[2]}
    ),
    st.tuples(st.integers(-9, 9), st.integers(1, 9), st.sampled_from([2, 10, 0.5])).map(
        lambda given: {"type": "log", "minval": given[0], "maxval": given[0] + given[1], "base": given[2], "count": 2}
    ),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), min_size=1, max_size=3, unique_by=repr).map(
        lambda vals: {"type": "categorical", "vals": vals}
    ),
    st.integers(),
)
NAMES = st.sampled_from(list("abcd"))
SPACES = st.dictionaries(NAMES, st.one_of(LEAVES, st.dictionaries(NAMES, LEAVES, max_size=2)), max_size=3)


def shape_of(value: Any) -> Any:
    is_group = isinstance(value, dict) and "type" not in value
    return {name: shape_of(value[name]) for name in sorted(value)} if is_group else None


@settings(deadline=None)
@given(SPACES)
def test_a_grid_has_as_many_points_as_its_size_says_all_different_places(space: dict[str, Any]) -> None:
    points = grid(space)
    assert len(points) == grid_size(space)
    assert len({json.dumps(point, sort_keys=True) for point in points}) == len(points)
    for point in points:
        assert shape_of(point) == shape_of(space)


@settings(deadline=None)
@given(SPACES, st.integers(0, 2**31 - 1), st.integers(0, 10**6))
def test_a_sample_has_the_shape_of_its_space_and_lies_in_it(space: dict[str, Any], seed: int, trial: int) -> None:
    drawn = sample(space, experiment_seed=seed, trial=trial)
    assert shape_of(drawn) == shape_of(space)
    assert drawn == sample(dict(reversed(space.items())), experiment_seed=seed, trial=trial)
    for name, leaf in space.items():
        if isinstance(leaf, dict) and leaf.get("type") in ("int", "double"):
            assert leaf["minval"] <= drawn[name] <= leaf["maxval"]
        if isinstance(leaf, dict) and leaf.get("type") == "categorical":
            assert drawn[name] in leaf["vals"]
