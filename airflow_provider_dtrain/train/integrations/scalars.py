"""Numbers among the values that a framework logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import MetricError
from airflow_provider_dtrain.train.reports.reducers import number


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are one number: int, float, tensor or array of one element. Texts are left out."""
    found = {}
    for name, value in values.items():
        if isinstance(value, bool):
            continue
        try:
            found[str(name)] = number(str(name), value)
        except MetricError:
            continue
    return found
