"""Training metrics of a trial class: collected per batch at low cost, read once per unit."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch

from airflow_provider_dtrain.train.errors import MetricError, NonFiniteLossError
from airflow_provider_dtrain.train.reports.reducers import number
from airflow_provider_dtrain.train.values import Metrics

log = logging.getLogger(__name__)

_ABSENT = object()


class BatchMetrics:
    """The metrics of the batches of one unit, column by column."""

    def __init__(self) -> None:
        #: Batches collected.
        self.count = 0
        self._columns: dict[str, list[Any]] = {}
        self._left_out: set[str] = set()

    def add(self, metrics: Any) -> None:
        """Add the result of a batch: a loss, or a dict of metrics. Tensors are detached.

        :raises MetricError: the result is neither
        """
        if metrics.__class__ is not dict:
            metrics = _as_dict(metrics)
        columns = self._columns
        try:
            for name, value in metrics.items():
                columns[name].append(value.detach() if value.__class__ is torch.Tensor else value)
        except KeyError:
            self._widen(metrics)
        self.count += 1
        if len(columns) != len(metrics):
            self._fill()

    def settle(self, first: int, rank: int, *, fail_on_nan: bool) -> dict[str, list[float]]:
        """Return the values of each metric, one per batch, None where it was not reported. Start anew.

        :param first: step of the first batch
        :param fail_on_nan: check losses for NaN
        :raises MetricError: a value is not a number
        :raises NonFiniteLossError: a loss is NaN; names its batch
        """
        found = read_columns(self._columns, self._left_out)
        self.count = 0
        self._columns = {}
        if fail_on_nan:
            for name in [name for name in found if name.lower().endswith("loss")]:
                for index, value in enumerate(found[name]):
                    if value is not None and value != value:
                        raise NonFiniteLossError(name, first + index, rank)
        return found

    def _widen(self, metrics: Metrics) -> None:
        """Add a batch that has a new metric."""
        for name, value in metrics.items():
            column = self._columns.setdefault(name, [])
            del column[self.count :]
            column.extend([_ABSENT] * (self.count - len(column)))
            column.append(value.detach() if hasattr(value, "detach") else value)

    def _fill(self) -> None:
        for column in self._columns.values():
            if len(column) < self.count:
                column.append(_ABSENT)


def means(columns: dict[str, list[float]]) -> dict[str, float]:
    """Return the mean of each metric over the batches that have it."""
    found = {}
    for name, values in columns.items():
        held = [value for value in values if value is not None]
        found[name] = math.fsum(held) / len(held) if all(map(math.isfinite, held)) else sum(held) / len(held)
    return found


def _as_dict(metrics: Any) -> Metrics:
    if isinstance(metrics, dict):
        return dict(metrics)
    if metrics is None:
        raise MetricError("train_batch must return the loss, or a dict of metrics (empty if there are none), got None.")
    return {"loss": metrics}


def read_columns(columns: Mapping[str, list[Any]], left_out: set[str]) -> dict[str, list[Any]]:
    """Return columns as floats, without metrics of several values, which curves and searchers cannot use.

    A loss of several values is an error.

    :param left_out: names of metrics that were warned of, to which new ones are added
    :raises MetricError: a value is neither a number nor several
    """
    found = {}
    for name, column in columns.items():
        try:
            found[name] = read_column(name, column)
        except MetricError:
            if name.lower().endswith("loss") or not any(map(_holds_several, column)):
                raise
            if name not in left_out:
                left_out.add(name)
                log.warning(
                    "Metric %r has several values per batch and is left out. Return numbers, e.g. their mean, or keep "
                    "them in a custom reducer.",
                    name,
                )
    return found


def _holds_several(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return True
    shape = getattr(value, "shape", None)
    return shape is not None and math.prod(shape) != 1


def read_column(name: str, column: list[Any]) -> list[Any]:
    """Return a column as floats. Tensors are read with one copy from the device."""
    kinds = set(map(type, column))
    if kinds == {float}:
        return column
    if kinds == {torch.Tensor}:
        try:
            values = torch.stack(column)
            if values.numel() == len(column):
                return values.reshape(-1).to(torch.float64).tolist()
        except RuntimeError:  # different shapes or devices
            pass
    return [None if value is _ABSENT else number(name, value) for value in column]
