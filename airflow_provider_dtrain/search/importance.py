"""Importance of hyperparameters: their shares in reaching a good metric, by Optuna's PED-ANOVA.

Source: Watanabe et al., "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces",
IJCAI 2023. Of Optuna's evaluators it is the one that needs no scikit-learn.
"""

from __future__ import annotations

import importlib.util
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_dtrain.core.search.dimensions import Dimension, value_at

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

#: Fewest trials with a metric. With fewer, the estimate is noise.
FEWEST: Final = 10
#: Most trials that are evaluated, the latest ones.
MOST: Final = 1000
METHOD: Final = "Optuna's PED-ANOVA: share of each hyperparameter in reaching the best tenth of the trials"


@dataclass(frozen=True, kw_only=True)
class ImportanceResult:
    """Importance of each hyperparameter, largest first."""

    #: Name -> share; the shares add up to 1. Empty: see the note.
    shares: Mapping[str, float]
    #: How it was computed, or why there is none.
    note: str


def importance(
    dimensions: Sequence[Dimension],
    trials: Sequence[tuple[Mapping[str, Any], float | None]],
    *,
    smaller_is_better: bool,
) -> ImportanceResult:
    """Return the importance of the hyperparameters that vary.

    :param trials: hyperparameters and metric of ended trials, in the order of their numbers
    """
    varying = [one for one in dimensions if one.kind != "const"]
    if not varying:
        return _none("All hyperparameters are constant.")
    if importlib.util.find_spec("optuna") is None:
        return _none(
            "Optuna is not installed on the API server. Install it there with: "
            "pip install 'airflow-provider-dtrain[optuna]'"
        )
    judged = [(hparams, metric) for hparams, metric in trials if metric is not None and math.isfinite(metric)]
    usable = [
        (values, metric) for hparams, metric in judged[-MOST:] if (values := _values(varying, hparams)) is not None
    ]
    if len(usable) < FEWEST:
        return _none(f"It needs {FEWEST} ended trials with a metric, and there are {len(usable)}.")
    if len({metric for _, metric in usable}) == 1:
        return _none("All trials have the same metric.")
    found = _evaluated(varying, usable, smaller_is_better=smaller_is_better)
    if not found:
        return _none("The trials do not differ enough.")
    words = f"{METHOD}, from {len(usable)} trials"
    return ImportanceResult(shares=dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))), note=words)


def _none(note: str) -> ImportanceResult:
    return ImportanceResult(shares={}, note=note)


def _evaluated(
    varying: Sequence[Dimension], usable: Sequence[tuple[Mapping[str, Any], float]], *, smaller_is_better: bool
) -> dict[str, float]:
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(direction="minimize" if smaller_is_better else "maximize")
            distributions = {one.name: _distribution(one) for one in varying}
            study.add_trials(
                [
                    optuna.trial.create_trial(params=dict(values), distributions=distributions, value=metric)
                    for values, metric in usable
                ]
            )
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    finally:
        optuna.logging.set_verbosity(before)
    return {name: float(share) for name, share in found.items() if math.isfinite(share)}


def _values(varying: Sequence[Dimension], hparams: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values of a trial in their dimensions, None if one is missing or outside."""
    found: dict[str, Any] = {}
    for one in varying:
        value = value_at(hparams, one.path)
        if one.kind == "categorical":
            text = json.dumps(value, sort_keys=True, default=str)
            if text not in _choices(one):
                return None
            found[one.name] = text
        else:
            if isinstance(value, bool) or not isinstance(value, int | float) or not _is_inside(one, value):
                return None
            found[one.name] = value
    return found


def _is_inside(of: Dimension, value: float) -> bool:
    return of.minimum is not None and of.maximum is not None and of.minimum <= value <= of.maximum


def _choices(of: Dimension) -> list[str]:
    return list(dict.fromkeys(json.dumps(value, sort_keys=True, default=str) for value in of.values or ()))


def _distribution(of: Dimension) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if of.kind == "categorical":
        return CategoricalDistribution(_choices(of))
    low, high = of.minimum or 0.0, of.maximum or 0.0
    if of.kind == "int":
        return IntDistribution(int(low), int(high))
    return FloatDistribution(low, high, log=of.is_log and low > 0)
