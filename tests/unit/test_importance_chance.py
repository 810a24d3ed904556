"""The importance of hyperparameters says when there are too few trials."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_dtrain.core.search.dimensions import dimensions
from airflow_provider_dtrain.core.search.importance import SHUFFLED_MOST, ImportanceResult, importance

ROOT = Path(__file__).parents[2]
SPACE = dimensions(
    {
        "lr": {"type": "log", "minval": -5, "maxval": -1, "base": 10},
        "dropout": {"type": "double", "minval": 0, "maxval": 0.5},
        "optimizer": {"type": "categorical", "vals": ["adam", "sgd"]},
    }
)


def importance_of(number: int, seed: int, *, noise: float) -> ImportanceResult:
    """Return the importance for trials whose metric depends on lr, with noise."""
    draw = random.Random(seed)
    trials = []
    for _ in range(number):
        exponent = draw.uniform(-5, -1)
        values = {"lr": 10**exponent, "dropout": draw.uniform(0, 0.5), "optimizer": draw.choice(["adam", "sgd"])}
        trials.append((values, (exponent + 3) ** 2 + noise * draw.gauss(0, 1)))
    return importance(SPACE, trials, smaller_is_better=True)


def test_few_trials_without_a_reason_are_named_with_their_number() -> None:
    found = importance_of(12, 3, noise=1e6)
    assert found.chances[next(iter(found.shares))] > 0.05
    assert "Too few trials to tell: 2 of 12 are the best ones" in found.note
    assert "from 12 trials" in found.note


def test_a_strong_effect_of_many_trials_is_no_chance() -> None:
    found = importance_of(100, 1, noise=0.0)
    assert (next(iter(found.shares)), found.chances["lr"]) == ("lr", 0.01)
    assert "Too few" not in found.note
    assert found.chances["dropout"] > 0.05


def test_the_test_is_wrong_about_as_often_as_it_says() -> None:
    # Metrics that depend on nothing: a chance of at most 5 % occurs in about 5 % of the cases.
    chances = [importance_of(20, seed, noise=1e9).chances["dropout"] for seed in range(25)]
    assert sum(chance <= 0.05 for chance in chances) <= 5
    assert sum(chance <= 0.5 for chance in chances) >= 6


def test_the_answer_is_the_same_in_each_process() -> None:
    code = "from tests.unit.test_importance_chance import importance_of; print(importance_of(30, 5, noise=1.0))"
    shown = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(shown) == 1


@pytest.mark.parametrize("number", [9, SHUFFLED_MOST + 1])
def test_no_chance_is_computed_without_importance_or_with_many_trials(number: int) -> None:
    assert importance_of(number, 1, noise=1.0).chances == {}
