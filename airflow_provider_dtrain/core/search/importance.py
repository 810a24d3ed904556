"""Importance of hyperparameters: their shares in reaching a good metric, by PED-ANOVA."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.search.dimensions import Dimension, value_at
from airflow_provider_dtrain.core.search.ped_anova import CELLS_MOST, best_trials, cell_of, divergence

#: Fewest trials with a metric. With fewer, the estimate is noise.
FEWEST: Final = 10
#: Most trials that are evaluated, the latest ones.
MOST: Final = 1000
METHOD: Final = "PED-ANOVA: share of each hyperparameter in reaching the best tenth of the trials"


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
    judged = [(hparams, metric) for hparams, metric in trials if metric is not None and math.isfinite(metric)]
    usable = [
        (values, metric) for hparams, metric in judged[-MOST:] if (values := _values(varying, hparams)) is not None
    ]
    if len(usable) < FEWEST:
        return _none(f"It needs {FEWEST} ended trials with a metric, and there are {len(usable)}.")
    if len({metric for _, metric in usable}) == 1:
        return _none("All trials have the same metric.")
    found = _evaluated(varying, usable, smaller_is_better=smaller_is_better)
    message = f"{METHOD}, from {len(usable)} trials"
    return ImportanceResult(shares=dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))), note=message)


def _none(note: str) -> ImportanceResult:
    return ImportanceResult(shares={}, note=note)


def _evaluated(
    varying: Sequence[Dimension], usable: Sequence[tuple[Mapping[str, Any], float]], *, smaller_is_better: bool
) -> dict[str, float]:
    """Return the share of each hyperparameter. They are equal if no hyperparameter matters."""
    best = best_trials([metric if smaller_is_better else -metric for _, metric in usable])
    found = {one.name: _importance(one, [values[one.name] for values, _ in usable], best) for one in varying}
    total = sum(found.values())
    return {name: value / total if total else 1.0 / len(found) for name, value in found.items()}


def _importance(of: Dimension, values: Sequence[Any], best: Sequence[bool]) -> float:
    if of.kind == "categorical":
        choices = _choices(of)
        places = {choice: place for place, choice in enumerate(choices)}
        return divergence([places[value] for value in values], best, len(choices), ordered=False)
    low, high = of.minimum or 0.0, of.maximum or 0.0
    if of.kind == "int":
        low, high = int(low), int(high)
    number = min(int(high) - int(low) + 1, CELLS_MOST) if of.kind == "int" else CELLS_MOST
    if of.is_log and low > 0:
        low, high, values = math.log(low), math.log(high), [math.log(value) for value in values]
    if high / 2 <= low / 2:
        return 0.0
    return divergence([cell_of(value, low, high, number) for value in values], best, number, ordered=True)


def _values(varying: Sequence[Dimension], hparams: Mapping[str, Any]) -> Hyperparameters | None:
    """Return the values of a trial in their dimensions, None if one is missing or outside."""
    found: Hyperparameters = {}
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
