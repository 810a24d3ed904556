"""Importance of hyperparameters: known answers of Optuna's PED-ANOVA, and ranges at the limits of floats."""

from __future__ import annotations

import math
import sys

import pytest

from airflow_provider_dtrain.core.search.dimensions import dimensions
from airflow_provider_dtrain.core.search.importance import importance
from airflow_provider_dtrain.core.search.ped_anova import best_trials, cell_of, divergence

OPTIMIZERS = ["adam", "sgd", None, 3]
SPACE = {
    "rate": {"type": "log", "minval": -5, "maxval": 0, "base": 10},
    "width": {"type": "int", "minval": 3, "maxval": 101},
    "layers": {"type": "int", "minval": 1, "maxval": 4},
    "dropout": {"type": "double", "minval": -0.5, "maxval": 0.5},
    "optimizer": {"type": "categorical", "vals": OPTIMIZERS},
}


def trials():
    for n in range(30):
        hparams = {
            "rate": 10 ** -(n % 6 / 1.2),
            "width": 3 + n * 7 % 99,
            "layers": 1 + n % 4,
            "dropout": (n * 11 % 30) / 30 - 0.5,
            "optimizer": OPTIMIZERS[n % 3],
        }
        yield hparams, (n % 6 - 2) ** 2 + n * 7 % 99 / 50 + (hparams["optimizer"] == "sgd")


def test_the_shares_are_those_of_optuna_5():
    found = importance(dimensions(SPACE), list(trials()), smaller_is_better=True)
    assert found.shares == pytest.approx(
        {
            "rate": 0.7033653729657245,
            "width": 0.132854239234742,
            "optimizer": 0.09222166359226243,
            "dropout": 0.07022324677779233,
            "layers": 0.0013354774294787753,
        },
        rel=1e-9,
    )
    found = importance(dimensions(SPACE), list(trials()), smaller_is_better=False)
    assert found.shares == pytest.approx(
        {
            "rate": 0.9837852616137183,
            "optimizer": 0.006184523713484209,
            "layers": 0.0058939190831931694,
            "width": 0.0039737331750612104,
            "dropout": 0.0001625624145431733,
        },
        rel=1e-9,
    )
    assert list(found.shares) == ["rate", "optimizer", "layers", "width", "dropout"]


@pytest.mark.parametrize(
    ("leaf", "values"),
    [
        ({"type": "double", "minval": -sys.float_info.max, "maxval": sys.float_info.max}, (-1e308, 1e308)),
        ({"type": "double", "minval": 0.0, "maxval": 5e-324}, (0.0, 5e-324)),
        ({"type": "double", "minval": 1.0, "maxval": 1.0}, (1.0, 1.0)),
        ({"type": "int", "minval": -(10**300), "maxval": 10**300}, (-(10**299), 10**299)),
        ({"type": "log", "minval": -300, "maxval": 300, "base": 10}, (1e-300, 1e300)),
        ({"type": "categorical", "vals": ["alone"]}, ("alone", "alone")),
    ],
)
def test_a_range_at_the_limits_of_floats_has_an_importance(leaf, values):
    judged = [({"x": values[n % 2], "y": n}, float(n % 2)) for n in range(20)]
    space = dimensions({"x": leaf, "y": {"type": "int", "minval": 0, "maxval": 19}})
    shares = importance(space, judged, smaller_is_better=True).shares
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(math.isfinite(share) and share >= 0 for share in shares.values())


def test_trials_that_cannot_be_judged_do_not_count():
    judged = [*trials(), ({}, 0.0), ({"rate": math.nan}, 0.0), (next(trials())[0], math.nan), (next(trials())[0], None)]
    found = importance(dimensions(SPACE), judged, smaller_is_better=True)
    assert found == importance(dimensions(SPACE), list(trials()), smaller_is_better=True)
    few = importance(dimensions(SPACE), list(trials())[:9], smaller_is_better=True)
    assert few.note == "Too few trials: the importance needs 10 ended ones with a metric, and there are 9."


def test_hyperparameters_that_do_not_matter_have_equal_shares():
    space = dimensions({"a": {"type": "categorical", "vals": [1]}, "b": {"type": "int", "minval": 5, "maxval": 5}})
    judged = [({"a": 1, "b": 5}, float(n)) for n in range(20)]
    assert importance(space, judged, smaller_is_better=True).shares == {"a": 0.5, "b": 0.5}


def test_the_best_trials_include_those_that_equal_the_last_of_them():
    assert best_trials([3.0, 1.0, 1.0, 2.0, *[9.0] * 6]) == [False, True, True, *[False] * 7]


def test_a_value_between_two_cells_belongs_to_the_lower_one():
    assert [cell_of(value, 0.0, 4.0, 5) for value in (0.0, 0.5, 0.51, 1.5, 4.0)] == [0, 0, 1, 1, 4]


def test_equal_trials_do_not_diverge():
    assert divergence([0, 1, 2, 3], [True] * 4, 4, ordered=True) == 0.0
    assert divergence([0, 1, 2, 3], [True, False, False, False], 4, ordered=True) > 0.1
