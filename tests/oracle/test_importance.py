"""Importance of hyperparameters is that of Optuna's own PED-ANOVA."""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from airflow_provider_dtrain.core.search.dimensions import Dimension, dimensions
from airflow_provider_dtrain.core.search.importance import importance

#: Optuna's evaluators import scikit-learn, which takes seven seconds. tests/unit/test_ped_anova.py has known answers.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed"),
]

SPACE = {
    "rate": {"type": "log", "minval": -5, "maxval": 0, "base": 10},
    "width": {"type": "int", "minval": 3, "maxval": 101},
    "layers": {"type": "int", "minval": 1, "maxval": 4},
    "fixed": {"type": "int", "minval": 7, "maxval": 7},
    "dropout": {"type": "double", "minval": -0.5, "maxval": 0.5},
    "optimizer": {"type": "categorical", "vals": ["adam", "sgd", None, 3]},
}


def optuna_importance(space: Sequence[Dimension], trials: Any, *, smaller_is_better: bool) -> dict[str, float]:
    """Return the importance of each hyperparameter by Optuna."""
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    def distribution(of: Dimension) -> Any:
        if of.kind == "categorical":
            return CategoricalDistribution([json.dumps(one) for one in of.values or ()])
        if of.kind == "int":
            return IntDistribution(int(of.minimum or 0), int(of.maximum or 0))
        return FloatDistribution(of.minimum or 0.0, of.maximum or 0.0, log=of.is_log)

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction="minimize" if smaller_is_better else "maximize")
        kinds = {one.name: distribution(one) for one in space}
        for hparams, metric in trials:
            own = {**hparams, "optimizer": json.dumps(hparams["optimizer"])}
            study.add_trial(optuna.trial.create_trial(params=own, distributions=kinds, value=metric))
        return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())


@pytest.mark.parametrize("seed", range(8))
def test_the_shares_are_those_of_optuna(seed: int) -> None:
    draw = random.Random(seed)
    trials = []
    for _ in range(draw.choice((10, 11, 60, 400))):
        hparams = {
            "rate": 10 ** draw.uniform(-5, 0),
            "width": draw.randint(3, 101),
            "layers": draw.randint(1, 4),
            "fixed": 7,
            "dropout": draw.uniform(-0.5, 0.5),
            "optimizer": draw.choice(SPACE["optimizer"]["vals"]),
        }
        metric = math.log10(hparams["rate"]) ** 2 + (hparams["optimizer"] == "sgd") + hparams["width"] / 100
        trials.append((hparams, round(metric, draw.choice((1, 9)))))
    space = dimensions(SPACE)
    for smaller in (True, False):
        found = importance(space, trials, smaller_is_better=smaller).shares
        assert found == pytest.approx(optuna_importance(space, trials, smaller_is_better=smaller), rel=1e-7, abs=1e-12)
