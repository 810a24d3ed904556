"""Importance of hyperparameters: their shares in reaching a good metric, by PED-ANOVA."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_provider_dtrain.core.documents import Hyperparameters
from airflow_provider_dtrain.core.search.dimensions import Dimension, value_at
from airflow_provider_dtrain.core.search.ped_anova import CELLS_MOST, best_trials, cell_of, divergence

#: Fewest trials with a metric. With fewer, the estimate is noise.
FEWEST: Final = 10
#: Most trials that are evaluated, the latest ones.
MOST: Final = 1000
#: Most trials whose importance is compared with chance: it costs 99 evaluations, and with more it is hardly chance.
SHUFFLED_MOST: Final = 200
SHUFFLES: Final = 99
#: Above this chance, an importance is no evidence.
DOUBTFUL: Final = 0.05
METHOD: Final = "PED-ANOVA: share of each hyperparameter in reaching the best tenth of the trials"


@dataclass(frozen=True, kw_only=True)
class ImportanceResult:
    """Importance of each hyperparameter, largest first."""

    #: Name -> share; the shares add up to 1. Empty: see the note.
    shares: Mapping[str, float]
    #: How it was computed, why there is none, or why it tells little.
    note: str
    #: Name -> share of shuffles of the metrics in which its importance is as large, from 0.01 to 1: a permutation test.
    #: Empty: not computed.
    chances: Mapping[str, float] = field(default_factory=dict)


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
        there_are = f"and there are {len(usable)}."
        return _none(f"Too few trials: the importance needs {FEWEST} ended ones with a metric, {there_are}")
    if len({metric for _, metric in usable}) == 1:
        return _none("All trials have the same metric.")
    best = best_trials([metric if smaller_is_better else -metric for _, metric in usable])
    amounts = _amounts(varying, usable, best)
    total = sum(amounts.values())
    # They are equal if no hyperparameter matters.
    found = {name: value / total if total else 1.0 / len(amounts) for name, value in amounts.items()}
    shares = dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))
    message = f"{METHOD}, from {len(usable)} trials"
    if len(usable) > SHUFFLED_MOST:
        return ImportanceResult(shares=shares, note=message)
    chances = _chances(varying, usable, best, amounts)
    largest = next(iter(shares))
    if chances[largest] > DOUBTFUL:
        message += (
            f". Too few trials to tell: {sum(best)} of {len(usable)} are the best ones, and if the metrics are "
            f"shuffled among the trials, {largest} is as important in {chances[largest]:.0%} of the cases"
        )
    return ImportanceResult(shares=shares, note=message, chances=chances)


def _none(note: str) -> ImportanceResult:
    return ImportanceResult(shares={}, note=note)


def _amounts(
    varying: Sequence[Dimension], usable: Sequence[tuple[Mapping[str, Any], float]], best: Sequence[bool]
) -> dict[str, float]:
    """Return the divergence of each hyperparameter."""
    return {one.name: _importance(one, [values[one.name] for values, _ in usable], best) for one in varying}


def _chances(
    varying: Sequence[Dimension],
    usable: Sequence[tuple[Mapping[str, Any], float]],
    best: Sequence[bool],
    amounts: Mapping[str, float],
) -> dict[str, float]:
    """Return for each hyperparameter how often chance makes it as important: a permutation test.

    The shuffles depend on the number of trials only, so that two processes give the same answer.
    """
    draw = random.Random(len(best))  # noqa: S311
    as_large = dict.fromkeys(amounts, 1)
    shuffled = list(best)
    for _ in range(SHUFFLES):
        draw.shuffle(shuffled)
        for name, amount in _amounts(varying, usable, shuffled).items():
            as_large[name] += amount >= amounts[name]
    return {name: count / (SHUFFLES + 1) for name, count in as_large.items()}


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
