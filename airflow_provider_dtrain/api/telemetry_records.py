"""Records of the system metrics of a trial, with the fields of the model ``Telemetry``.

An answer has up to 60,000 points, which a model would check one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from airflow_provider_dtrain.store.records.telemetry import Series


class SeriesRecord(TypedDict):
    """A ``TelemetrySeries``."""

    attempt: int
    host: str
    device: str | None
    rank: int | None
    metric: str
    unit: str
    at_s: Sequence[int]
    mean: Sequence[float | None]
    minimum: Sequence[float | None]
    maximum: Sequence[float | None]


class TelemetryRecord(TypedDict):
    """``Telemetry``."""

    series: list[SeriesRecord]


def series_record(of: Series) -> SeriesRecord:
    """Return one series. Its values are finite, because the store takes no other ones."""
    return SeriesRecord(
        attempt=of.attempt,
        host=of.host,
        device=of.device or None,
        rank=of.rank,
        metric=of.metric,
        unit=of.unit,
        at_s=of.at_s,
        mean=of.mean,
        minimum=of.minimum,
        maximum=of.maximum,
    )
