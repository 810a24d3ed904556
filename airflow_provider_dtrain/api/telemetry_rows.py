"""Answers with system metrics."""

from __future__ import annotations

from airflow_provider_dtrain.api.models.trials import TelemetrySeries
from airflow_provider_dtrain.store.records.telemetry import Series


def series_of(of: Series) -> TelemetrySeries:
    """Return one series. Its values are finite, because the store takes no other ones."""
    return TelemetrySeries(
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
