"""Curves of reported metrics, as charts draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_dtrain.resources.metrics import MetricGroup


@dataclass(frozen=True, kw_only=True)
class CurveOf:
    """Reports of one trial that contain a metric, in the order of steps. All lists have the same length."""

    trial_id: int
    group: MetricGroup
    name: str
    steps: Sequence[int]
    #: None where the report named no epoch.
    epochs: Sequence[float | None]
    #: Unix time, by the clock of the host.
    at_s: Sequence[float]
    #: As reported; may be NaN or infinite. None: no number.
    values: Sequence[float | None]
    #: Number of the attempt that reported.
    attempts: Sequence[int]
    #: True: the trial has more reports than were read, so extreme values may be missing.
    is_sampled: bool
