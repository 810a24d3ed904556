"""Metrics of a batch inference: parts per shard that combine exactly, whatever rank and run computed them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.errors import MetricError
from airflow_provider_dtrain.train.reports import reducers
from airflow_provider_dtrain.train.reports.metrics import check_names
from airflow_provider_dtrain.train.reports.reducers import Reducer, number

#: Reducer, value and weight of a metric in one shard: a sum for means, as :func:`reducers.partial` returns it.
Part = Sequence[Any]


class ShardMetrics:
    """Metrics of the batches of one shard."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Reducer, list[float], list[float]]] = {}

    def add(self, metrics: Mapping[str, Any], weight: float, reducer: Reducer | Mapping[str, Reducer]) -> None:
        """Add the metrics of one batch.

        :param weight: weight in a mean: the rows of the batch
        :param reducer: how values become one, or one per metric
        :raises MetricError: a value is not a number, or a metric changes its reducer
        """
        check_names(metrics)
        for name, value in metrics.items():
            chosen = reducer if isinstance(reducer, Reducer) else reducer.get(name, Reducer.AVG)
            kind, values, weights = self._values.setdefault(name, (chosen, [], []))
            if kind is not chosen:
                raise MetricError(f"Metric {name!r} must have one reducer, got {kind.name} and {chosen.name}.")
            values.append(number(name, value))
            weights.append(weight)

    def copy(self) -> ShardMetrics:
        """Return the same metrics, to which others can be added."""
        found = ShardMetrics()
        found._values = {name: (kind, values[:], weights[:]) for name, (kind, values, weights) in self._values.items()}
        return found

    def parts(self) -> dict[str, Part]:
        """Return the shard's part of each metric, as JSON."""
        found: dict[str, Part] = {}
        for name, (kind, values, weights) in self._values.items():
            value, weight = reducers.partial(kind, values, weights)
            found[name] = [kind.name, value if math.isfinite(value) else repr(value), weight]
        return found


def combined(shards: Sequence[Mapping[str, Part]]) -> dict[str, float]:
    """Return the metrics of the data set from the parts of its shards.

    Sums are exact before they are rounded once, so neither the order nor the number of ranks changes a bit.

    :raises MetricError: shards have different reducers for one metric
    """
    names = {name: str(parts[name][0]) for parts in shards for name in parts}
    found = {}
    for name, kind in names.items():
        parts = [shard[name] for shard in shards if name in shard]
        if any(part[0] != kind for part in parts):
            raise MetricError(f"Metric {name!r} must have one reducer in all shards.")
        found[name] = reducers.combine(Reducer[kind], [(float(value), float(weight)) for _, value, weight in parts])
    return found
