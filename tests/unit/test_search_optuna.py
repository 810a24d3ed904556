"""Optuna's samplers on histories as the store keeps them, with Optuna itself."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import warnings
from typing import Any

import pytest

from airflow_provider_dtrain.core.hyperparameters.space import sample
from airflow_provider_dtrain.errors import ConfigError
from airflow_provider_dtrain.search.optuna_sampler import NEEDS, check_installed, draw
from tests.support.search_space import SPACE, assert_in_space


def missing(sampler: str) -> str:
    return ", ".join(name for name in NEEDS[sampler] if importlib.util.find_spec(name) is None)


def here(sampler: str) -> Any:
    return pytest.param(sampler, marks=pytest.mark.skipif(bool(missing(sampler)), reason=f"needs {missing(sampler)}"))


SAMPLERS = [here(name) for name in NEEDS]
here_only = pytest.mark.skipif(bool(missing("cmaes")), reason="needs cmaes")
pytestmark = pytest.mark.skipif(bool(missing("tpe")), reason="needs optuna")


def loss(values: dict[str, Any]) -> float:
    return abs(math.log10(values["lr"]) + 3) + abs(values["net"]["width"] - 20) / 20


def search(sampler: Any, count: int, *, sign: int = 1, seed: int = 1) -> list[tuple[dict[str, Any], float, str]]:
    history: list[tuple[dict[str, Any], float, str]] = []
    for trial in range(count):
        values = draw(SPACE, sampler=sampler, seed=seed, trial=trial, history=history, smaller_is_better=sign > 0)
        history.append((values, sign * loss(values), "completed"))
    return history


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_name_with_a_dot_is_no_group(sampler: Any) -> None:
    value, places = {"type": "double", "minval": 0, "maxval": 1}, range(13)
    spaces: list[dict[str, Any]] = [{"net": {"lr": value}}, {"net.lr": value}]
    found: list[list[float]] = []
    for space in spaces:
        history: list[Any] = []
        for trial in places:
            drawn = draw(space, sampler=sampler, seed=1, trial=trial, history=history)
            last = drawn["net"]["lr"] if "net" in space else drawn["net.lr"]
            history.append((drawn, (last - 0.7) ** 2, "completed"))
        found.append([metric for _, metric, _ in history])
    assert found[0] == found[1], "what was drawn before is known"
    both = {"a.b": value, "a": {"b": {"type": "int", "minval": 5, "maxval": 9}}, "a\\": {"b": value}}
    for trial in places:
        drawn = draw(both, sampler=sampler, seed=1, trial=trial, history=[])
        assert (drawn["a.b"] <= 1, drawn["a"]["b"] in range(5, 10), drawn["a\\"]["b"] <= 1) == (True, True, True)


@pytest.mark.nightly("gp")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_draw_has_the_shape_of_the_space_and_lies_in_it(sampler: Any) -> None:
    for values, _, _ in search(sampler, 14):
        assert_in_space(values)


@pytest.mark.nightly("gp")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_seed_trial_draw_and_history_alone_decide(sampler: Any) -> None:
    # So few that gp, which later proposes what its model likes best, still draws by the seed.
    history = search(sampler, 9)
    here = draw(SPACE, sampler=sampler, seed=3, trial=13, history=history)
    stored = json.loads(json.dumps(history))
    assert draw(SPACE, sampler=sampler, seed=3, trial=13, history=stored) == here
    others = [
        draw(SPACE, sampler=sampler, seed=4, trial=13, history=history),
        draw(SPACE, sampler=sampler, seed=3, trial=14, history=history),
        draw(SPACE, sampler=sampler, seed=3, trial=13, history=history, draw=1),
    ]
    assert here not in others


CORNER: dict[str, Any] = {
    "a": {"type": "double", "minval": 0, "maxval": 1},
    "b": {"type": "log", "minval": -4, "maxval": 0},
    "c": {"type": "int", "minval": 0, "maxval": 1000},
    "d": {"type": "categorical", "vals": ["x", "y"]},
}


def distance(values: dict[str, Any]) -> float:
    return (values["a"] - 0.9) ** 2 + (math.log10(values["b"]) / 4 + 0.15) ** 2 + (values["c"] / 1000 - 0.1) ** 2


@pytest.mark.nightly("-1-gp", "1-gp")
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("sign", [1, -1])
def test_what_was_good_is_drawn_again_in_its_neighbourhood(sampler: Any, sign: int) -> None:
    history: list[tuple[dict[str, Any], float, str]] = []
    for trial in range({"tpe": 50, "cmaes": 90, "gp": 18}[sampler]):
        values = draw(CORNER, sampler=sampler, seed=5, trial=trial, history=history, smaller_is_better=sign > 0)
        history.append((values, sign * distance(values), "completed"))
    found = [distance(values) for values, _, _ in history]
    assert sum(found[-8:]) < 0.3 * sum(found[:8])


@here_only
@pytest.mark.parametrize("space", [{"d": CORNER["d"]}, {"a": CORNER["a"]}, {"a": CORNER["a"], "d": CORNER["d"]}])
def test_cmaes_takes_spaces_with_less_than_two_numbers(space: dict[str, Any]) -> None:
    history: list[tuple[dict[str, Any], float, str]] = []
    for trial in range(40):
        values = draw(space, sampler="cmaes", seed=5, trial=trial, history=history)
        history.append((values, abs(values.get("a", 0.9) - 0.9), "completed"))
    if "a" in space:
        assert sum(metric for _, metric, _ in history[-6:]) < 0.3 * sum(metric for _, metric, _ in history[:6])
    if "d" in space:
        assert {values["d"] for values, _, _ in history} == {"x", "y"}


@here_only
def test_cmaes_begins_again_when_it_has_found_a_place() -> None:
    found = ({"a": 0.25, "b": 0.01, "c": 500, "d": "x"}, 1.0, "completed")
    spreads = []
    for count in (200, 300, 400, 500, 600, 700, 800):
        drawn = [draw(CORNER, sampler="cmaes", seed=s, trial=count, history=[found] * count)["a"] for s in range(5)]
        spreads.append(max(drawn) - min(drawn))
    first = next(index for index, spread in enumerate(spreads) if spread < 0.05)
    assert max(spreads[first:]) > 0.1


@pytest.mark.nightly("gp")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_refused_sample_is_followed_by_one_drawn_by_chance(sampler: Any) -> None:
    history = search(sampler, 2)
    assert draw(SPACE, sampler=sampler, seed=3, trial=2, history=history, draw=4) == sample(
        SPACE, experiment_seed=3, trial=2, draw=4
    )


@pytest.mark.nightly("gp")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_says_nothing_is_left_out(sampler: Any) -> None:
    history = search(sampler, 12)
    extra = [
        ({"lr": 0.01}, 0.0, "completed"),
        ({**history[0][0], "net": {**history[0][0]["net"], "act": "tanh"}}, 0.0, "completed"),
        (history[0][0], math.nan, "completed"),
        (history[0][0], None, "completed"),
        (history[0][0], 0.0, "errored"),
        ({**history[0][0], "lr": "fast"}, 0.0, "stopped"),
    ]
    plain = draw(SPACE, sampler=sampler, seed=3, trial=20, history=history)
    assert draw(SPACE, sampler=sampler, seed=3, trial=20, history=[*history, *extra]) == plain


def test_a_stopped_trial_counts_as_a_completed_one() -> None:
    history = search("tpe", 12)
    stopped = [(values, metric, "stopped") for values, metric, _ in history]
    assert draw(SPACE, sampler="tpe", seed=3, trial=12, history=stopped) == draw(
        SPACE, sampler="tpe", seed=3, trial=12, history=history
    )


def test_tpe_keeps_away_from_what_runs_already() -> None:
    history = search("tpe", 20)
    alone = draw(SPACE, sampler="tpe", seed=3, trial=20, history=history)
    crowd = [(alone, None, "running")] * 10
    beside = draw(SPACE, sampler="tpe", seed=3, trial=20, history=[*history, *crowd])
    assert beside != alone


def test_a_value_at_or_beyond_its_end_is_taken_as_the_end() -> None:
    (values, _, _), *_ = search("tpe", 1)
    for lr in (0.1, 0.1000000001, 1e-9):
        history = [({**values, "lr": lr}, 0.5, "completed")] * 12
        assert 1e-5 <= draw(SPACE, sampler="tpe", seed=3, trial=12, history=history)["lr"] <= 0.1


def test_a_draw_leaves_logs_and_warnings_alone(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    with warnings.catch_warnings(), caplog.at_level(logging.DEBUG):
        warnings.simplefilter("error")
        search("tpe", 2)
    assert optuna.logging.get_verbosity() == before
    assert [record for record in caplog.records if record.name.startswith("optuna")] == []
    assert "study" not in capfd.readouterr().err


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("cmaes", "torch") else name)
    check_installed("tpe")
    with pytest.raises(ConfigError, match=r"searcher\.sampler: cmaes needs cmaes .*airflow-provider-dtrain\[optuna\]"):
        draw(SPACE, sampler="cmaes", seed=1, trial=0, history=[])
    with pytest.raises(ConfigError, match=r"gp needs torch .*\[optuna,torch\]"):
        check_installed("gp")
