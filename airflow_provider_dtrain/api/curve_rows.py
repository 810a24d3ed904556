"""Answers with curves of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from airflow_provider_dtrain.api.models.charts import Axis, Curve
from airflow_provider_dtrain.api.models.trials import MetricSeries
from airflow_provider_dtrain.store.records.curves import CurveOf
from airflow_provider_dtrain.store.records.pages import TrialHead


def curve_of(head: TrialHead, name: str, of: CurveOf, x: Axis, best: int | None) -> Curve:
    """Return a curve of a trial on one axis. Reports without a place on the axis are left out.

    :param name: of the trial
    :param best: id of the best trial
    """
    axis: Sequence[float | None] = finite(of.epochs)
    if x == "batches":
        axis = [float(step) for step in of.steps]
    elif x == "time":
        axis = [at - of.at_s[0] for at in of.at_s]
    kept = [(at, value) for at, value in zip(axis, finite(of.values), strict=True) if at is not None]
    return Curve(
        trial_id=of.trial_id,
        number=head.number,
        trial_name=name,
        state=head.state,
        is_best=of.trial_id == best,
        x=[at for at, _ in kept],
        y=[value for _, value in kept],
        sampled=of.is_sampled,
    )


def metric_series(of: CurveOf) -> MetricSeries:
    """Return a metric of a trial with all its axes."""
    return MetricSeries(
        group=of.group,
        name=of.name,
        batches=of.steps,
        epochs=finite(of.epochs),
        at_s=of.at_s,
        y=finite(of.values),
        attempt=of.attempts,
        sampled=of.is_sampled,
    )


def finite(values: Sequence[float | None]) -> list[float | None]:
    """Return values with None in the place of NaN and infinities, which JSON does not have."""
    return [value if value is not None and isfinite(value) else None for value in values]
