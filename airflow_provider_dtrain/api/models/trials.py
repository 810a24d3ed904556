"""Curves, telemetry and timings of trials."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict

from airflow_provider_dtrain.api.models.common import Model, unchecked
from airflow_provider_dtrain.resources.metrics import MetricGroup
from airflow_provider_dtrain.resources.telemetry import SlowRank, TimingTotal


@unchecked
class MetricSeries(TypedDict):
    """One metric of a trial over its reports."""

    group: MetricGroup
    name: str
    batches: Sequence[int]
    epochs: list[float | None]
    #: Unix time of each report, by the clock of the host.
    at_s: Sequence[float]
    y: list[float | None]
    #: Number of the attempt that reported.
    attempt: Sequence[int]
    #: The trial has more reports than were read: extreme values between the points may be missing.
    sampled: bool


@unchecked
class TrialCurves(TypedDict):
    """Metrics of one trial."""

    series: list[MetricSeries]


@unchecked
class TelemetrySeries(TypedDict):
    """One system metric of a host or GPU, or of a rank."""

    attempt: int
    host: str
    #: UUID of the GPU; None: of the whole host.
    device: str | None
    rank: int | None
    metric: str
    unit: str
    at_s: Sequence[float]
    mean: Sequence[float | None]
    minimum: Sequence[float | None]
    maximum: Sequence[float | None]


@unchecked
class Telemetry(TypedDict):
    """System metrics of one trial."""

    series: list[TelemetrySeries]


class TimingPart(Model):
    """Part of the steps of an attempt, mean over the ranks. The parts add up to the whole step."""

    name: str
    total_s: float
    #: Of the whole time, from 0 to 1.
    share: float


class Timings(Model):
    """Parts of the steps of an attempt over time."""

    attempt: int
    #: Start of each interval, Unix time.
    at_s: list[float]
    #: Length of an interval.
    bucket_s: float
    #: In the order of a step.
    names: list[str]
    #: Name -> its part of each interval, from 0 to 1; None: no step.
    share: dict[str, list[float | None]]
    parts: list[TimingPart]
    #: Every timing as measured. They overlap: ``train_batch`` contains ``backward``.
    totals: list[TimingTotal]


class RankPlace(Model):
    """A rank and its place."""

    rank: int
    host: str
    slot: int | None
    #: Median time that it needed for a step, without the wait for other ranks, relative to the gang's median.
    ratio: float | None


class StepTimes(Model):
    """Step time of each rank over time."""

    attempt: int
    #: Start of each interval, Unix time.
    at_s: list[float]
    #: Length of an interval.
    bucket_s: float
    ranks: list[RankPlace]
    #: One list per rank: mean time that it needed for a step in each interval, without the wait for other ranks.
    mean_s: list[list[float | None]]
    #: Median of the ranks' medians.
    median_s: float | None
    #: Slowest first.
    slow_ranks: list[SlowRank]
