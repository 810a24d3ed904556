"""Draws from a Gaussian process over rungs, and the process itself beside scikit-learn's."""

from __future__ import annotations

import importlib.util
import json
import math
from typing import Any

import pytest

from airflow_provider_dtrain.core.hyperparameters.space import sample
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.search.rung_process import Observations, RungProcess
from airflow_provider_dtrain.search.rung_sampler import (
    MOST_METRICS,
    RANDOM_EVERY,
    STARTUP,
    KnownTrial,
    check_installed,
    draw,
)
from tests.support.search_space import SPACE, assert_in_space

np = pytest.importorskip("numpy")
optimize = pytest.importorskip("scipy.optimize")

RUNGS = (1, 4, 16)


def loss(values: dict[str, Any]) -> float:
    return (
        abs(math.log10(values["lr"]) + 3)
        + abs(values["net"]["width"] - 20) / 20
        + (values["net"]["act"] is not None)
        + values["half"]
    )


def trial_of(values: dict[str, Any], reached: int, *, is_open: bool = False, sign: int = 1) -> KnownTrial:
    return KnownTrial(values, {units: sign * (loss(values) + 1 / units) for units in RUNGS[:reached]}, is_open)


def searched(count: int, *, seed: int = 1, sign: int = 1) -> list[KnownTrial]:
    """Return a search in which every fourth trial reaches the second rung, and every twelfth the last one."""
    found: list[KnownTrial] = []
    for trial in range(count):
        values = draw(SPACE, seed=seed, trial=trial, rungs=RUNGS, history=found, smaller_is_better=sign > 0)
        found.append(trial_of(values, 3 if trial % 12 == 0 else 2 if trial % 4 == 0 else 1, sign=sign))
    return found


@pytest.fixture(scope="module")
def known() -> list[KnownTrial]:
    return searched(26)


def asked(history: Any, trial: int = 24, *, seed: int = 1, **more: Any) -> Any:
    return draw(SPACE, seed=seed, trial=trial, rungs=RUNGS, history=history, **more)


# -- the process --------------------------------------------------------------------------------
def example(count: int, rungs: int) -> Observations:
    chance = np.random.default_rng(3)
    choices = np.eye(3)[chance.integers(0, 3, count)]
    places = np.concatenate([chance.random((count, 2)), choices], axis=1)
    metrics = np.sin(5 * places[:, 0]) + choices[:, 1] + 0.1 * chance.normal(size=count)
    return Observations(places, chance.integers(0, rungs, count), metrics)


def of_example(rungs: int) -> RungProcess:
    return RungProcess([0, 1, 2, 2, 2], [False, False, True], rungs)


def test_the_gradient_is_that_of_finite_differences() -> None:
    observed, process = example(30, 3), of_example(3)
    groups = ([0], [1], [2, 3, 4])
    differences = np.array(
        [((observed.places[:, None, g] - observed.places[None, :, g]) ** 2).sum(axis=2) for g in groups]
    )
    start = process._prior[0] + np.linspace(-0.5, 0.5, process._prior.shape[1])
    exact = process._loss(start, observed, differences)[1]
    near = optimize.approx_fprime(start, lambda at: process._loss(at, observed, differences)[0], 1e-6)
    assert exact == pytest.approx(near, rel=1e-3, abs=1e-3)


def test_a_fitted_process_predicts_what_the_one_of_scikit_learn_predicts_with_its_parameters() -> None:
    regression = pytest.importorskip("sklearn.gaussian_process")
    kernels = regression.kernels
    observed, process = example(40, 1), of_example(1)
    process.fit(observed)
    scales = process._scales
    kernel = kernels.ConstantKernel(scales.deviations[0] ** 2) * kernels.Matern(scales.lengths[[0, 1, 2, 2, 2]], nu=2.5)
    peer = regression.GaussianProcessRegressor(kernel, alpha=scales.noise**2 + 1e-8, optimizer=None)
    peer.fit(observed.places, observed.metrics)
    asked_for = example(25, 1).places
    mean, deviation = process.predict(asked_for, 0)
    their_mean, their_deviation = peer.predict(asked_for, return_std=True)
    assert mean == pytest.approx(their_mean, abs=1e-6)
    assert deviation == pytest.approx(their_deviation, abs=1e-5)


def test_a_fit_finds_how_far_rungs_agree() -> None:
    chance = np.random.default_rng(1)
    places = np.repeat(chance.random((30, 1)), 2, axis=0)
    rungs, values = np.tile([0, 1], 30), np.sin(6 * places[:, 0])
    other = np.cos(9 * places[:, 0] + 1)
    for metrics, low, high in ((values, 0.9, 1.0), (np.where(rungs == 0, other, values), 0.0, 0.8)):
        process = RungProcess([0], [False], 2)
        process.fit(Observations(places, rungs, metrics))
        assert low <= process._scales.correlations[0] <= high


# -- draws --------------------------------------------------------------------------------------
def test_a_draw_has_the_shape_of_the_space_and_lies_in_it(known: list[KnownTrial]) -> None:
    for one in known:
        assert_in_space(one.hyperparameters)


def test_the_first_trials_and_some_later_ones_are_those_of_random_draws(known: list[KnownTrial]) -> None:
    for number, one in enumerate(known):
        is_random = number < STARTUP or number % RANDOM_EVERY == RANDOM_EVERY - 1
        assert (one.hyperparameters == sample(SPACE, experiment_seed=1, trial=number)) == is_random, number


@pytest.mark.parametrize("sign", [1, -1])
def test_informed_draws_are_better_than_random_ones(sign: int) -> None:
    found = [loss(dict(one.hyperparameters)) for one in searched(30, sign=sign)]
    informed = [value for number, value in enumerate(found) if number >= 20 and number % RANDOM_EVERY != 3]
    assert sum(informed) / len(informed) < 0.5 * sum(found[:STARTUP]) / STARTUP


def test_a_rung_that_disagrees_does_not_decide() -> None:
    space = {"a": {"type": "double", "minval": 0, "maxval": 1}}
    history = []
    for number in range(24):
        a = (number + 0.5) / 24
        # The first rung prefers the other end.
        metrics = {1: (a - 0.1) ** 2, **({16: (a - 0.9) ** 2} if number % 3 == 0 else {})}
        history.append(KnownTrial({"a": a}, metrics, is_open=False))
    drawn = draw(space, seed=1, trial=24, rungs=(1, 16), history=history)
    assert drawn["a"] == pytest.approx(0.9, abs=0.1)


def test_seed_trial_and_history_alone_decide(known: list[KnownTrial]) -> None:
    again = [KnownTrial(json.loads(json.dumps(one.hyperparameters)), dict(one.metrics), one.is_open) for one in known]
    assert asked(known) == asked(again)
    assert len({json.dumps(asked(known, **more)) for more in ({}, {"seed": 2}, {"trial": 25}, {"draw": 1})}) == 4


def test_a_refused_sample_is_followed_by_one_drawn_by_chance(known: list[KnownTrial]) -> None:
    assert asked(known, draw=4) == sample(SPACE, experiment_seed=1, trial=24, draw=4)


def test_trials_that_start_together_differ() -> None:
    space = {"a": {"type": "double", "minval": 0, "maxval": 1}}
    # Both ends are equally promising.
    history = [KnownTrial({"a": a}, {1: -((a - 0.5) ** 2)}, is_open=False) for a in np.linspace(0.3, 0.7, 24)]

    def drawn(*more: KnownTrial) -> float:
        return float(draw(space, seed=1, trial=24, rungs=(1,), history=[*history, *more])["a"])

    first = drawn()
    assert abs(first - 0.5) > 0.3
    assert abs(drawn(KnownTrial({"a": first}, {}, is_open=True)) - first) > 0.5
    assert drawn(KnownTrial({"a": first}, {}, is_open=False)) == first, "it ended without a metric and says nothing"


def test_what_says_nothing_is_left_out(known: list[KnownTrial]) -> None:
    values: Any = known[0].hyperparameters
    extra = [
        KnownTrial({"lr": 0.01}, {1: 0.0}, is_open=True),
        KnownTrial({**values, "net": {**values["net"], "act": "tanh"}}, {16: 0.0}, is_open=False),
        KnownTrial({**values, "lr": "fast"}, {4: 0.0}, is_open=True),
        KnownTrial(values, {2: -100.0}, is_open=False),
    ]
    assert asked([*known, *extra]) == asked(known)


def test_a_metric_that_is_not_finite_counts_as_one_of_the_worst() -> None:
    space = {"a": {"type": "double", "minval": 0, "maxval": 1}}
    for bad in (None, math.nan, math.inf):
        history = [
            KnownTrial({"a": a}, {1: bad if a > 0.5 else 1 - a}, is_open=False) for a in np.linspace(0.02, 0.98, 24)
        ]
        drawn = [draw(space, seed=seed, trial=24, rungs=(1,), history=history)["a"] for seed in range(4)]
        assert all(0.3 < a < 0.6 for a in drawn)


@pytest.mark.parametrize("metric", [None, math.nan, math.inf, 0.5, 1e300, -1e300, 5e-324])
def test_any_metrics_give_a_draw(known: list[KnownTrial], metric: float | None) -> None:
    same = [KnownTrial(one.hyperparameters, dict.fromkeys(one.metrics, metric), one.is_open) for one in known]
    assert 1e-5 <= asked(same)["lr"] <= 0.1
    mixed = [*known[:-1], KnownTrial(known[-1].hyperparameters, {1: metric}, is_open=False)]
    assert 1e-5 <= asked(mixed)["lr"] <= 0.1


HUGE = 1.7e308


@pytest.mark.parametrize(
    "metrics",
    [
        [0.5] * 20 + [1e300],
        [0.0] * 20 + [5e-324],
        [HUGE, -HUGE] * 12,
        [-HUGE] * 20 + [HUGE],
        [1e-300] * 20 + [1.0, 0.0],
    ],
)
def test_metrics_at_the_ends_of_floats_give_a_draw(known: list[KnownTrial], metrics: list[float]) -> None:
    history = [
        KnownTrial(one.hyperparameters, {1: metric}, is_open=False) for one, metric in zip(known, metrics, strict=False)
    ]
    assert 1e-5 <= asked(history)["lr"] <= 0.1


def test_trials_that_failed_do_not_displace_all_metrics(known: list[KnownTrial]) -> None:
    failed = [KnownTrial(known[0].hyperparameters, {1: None}, is_open=False)] * MOST_METRICS
    history = [trial_of(dict(one.hyperparameters), 1) for one in known]
    assert asked([*history, *failed]) == sample(SPACE, experiment_seed=1, trial=24)


@pytest.mark.parametrize(
    "space",
    [
        {"a": {"type": "categorical", "vals": ["x", "y"]}},
        {"a": {"type": "categorical", "vals": list(range(3000))}, "b": {"type": "int", "minval": 0, "maxval": 1}},
        {"a": {"type": "log", "minval": -300, "maxval": -299.9999999999999}},
        {"a": {"type": "double", "minval": -8e307, "maxval": 8e307}},
    ],
)
def test_any_space_gives_a_draw(space: dict[str, Any]) -> None:
    drawn = [sample(space, experiment_seed=1, trial=number) for number in range(40)]
    history = [KnownTrial(values, {1: float(number)}, is_open=number % 5 == 0) for number, values in enumerate(drawn)]
    values = draw(space, seed=1, trial=40, rungs=(1, 4), history=history)
    assert sorted(values) == sorted(space)
    (leaf, value) = (space["a"], values["a"])
    assert value in leaf["vals"] if "vals" in leaf else isinstance(value, float)


def test_the_time_of_a_draw_is_limited() -> None:
    values = [sample(SPACE, experiment_seed=1, trial=number) for number in range(3 * MOST_METRICS)]
    history = [trial_of(one, 1 if number else 3) for number, one in enumerate(values)]
    latest = [history[0], *history[-MOST_METRICS:]]
    assert asked(history) == asked(latest[:1] + latest[3:]), "of the lowest rung, the trials that came last count"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "scipy" else name)
    with pytest.raises(ConfigError, match=r"searcher\.sampler: gp needs scipy .*airflow-provider-dtrain\[gp\]"):
        check_installed()
    with pytest.raises(ConfigError, match="gp needs scipy"):
        asked([])
