"""Telemetry: points of hosts as their follower commits them, and series as pages and commands show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from airflow_provider_dtrain.core.series.points import Key, Points
from airflow_provider_dtrain.resources.telemetry import TimingTotal

#: ``system``: metrics of hosts and GPUs. ``rank``: timings of the parts of a batch, which ranks measure.
SeriesKind = Literal["system", "rank"]


@dataclass(frozen=True, kw_only=True)
class TelemetryGap:
    """Lines of a stream that are not stored, counted per reason."""

    stream: str
    #: ``corrupt``, ``invalid``, ``value``, ``clock`` or ``missing``.
    code: str
    lines: int
    size_bytes: int
    #: The first of them, Unix seconds.
    first_at_s: float


@dataclass(frozen=True, kw_only=True)
class HostTelemetry:
    """Points of one host that are committed together, with the part of its files that they come from."""

    host: str
    series: Mapping[Key, Points]
    #: Stream -> bytes of it that are stored after this commit.
    positions: Mapping[str, int] = field(default_factory=dict)
    gaps: Sequence[TelemetryGap] = ()
    #: Number of commits that this writer has seen; None: it does not resume, so there is nothing to compare.
    commits: int | None = None


@dataclass(frozen=True, kw_only=True)
class TelemetryState:
    """State of the telemetry of one run on one host, with which a follower resumes."""

    host: str
    token: int
    commits: int
    positions: Mapping[str, int]
    gaps: Sequence[TelemetryGap]
    first_s: int
    last_s: int


@dataclass(frozen=True, kw_only=True)
class Series:
    """One series of an attempt, reduced to the requested number of points.

    ``at_s``, ``mean``, ``minimum`` and ``maximum`` have the same length. A gap in the measurements is one point whose
    three values are None, so that a line that is drawn through the points breaks there.
    """

    #: Number of the attempt, from 1.
    attempt: int
    host: str
    #: UUID of a GPU; empty for the host itself and for ranks.
    device: str
    #: None for hosts and GPUs.
    rank: int | None
    metric: str
    #: ``%``, ``bytes``, ``bytes/s``, ``1/s`` or ``s``.
    unit: str
    #: Length of the interval of each point, seconds.
    step_s: int
    #: Start of each interval, Unix seconds by the clock of the Airflow machine.
    at_s: Sequence[int]
    mean: Sequence[float | None]
    minimum: Sequence[float | None]
    maximum: Sequence[float | None]


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """Step times of one rank, by time bucket. Buckets without a step are None."""

    rank: int
    host: str
    #: Mean time of a step, seconds: all of it, with data loading and the wait for the other ranks.
    step_s: Sequence[float | None]
    #: Mean time that the rank itself needed for a step, seconds, without the wait for the other ranks.
    busy_s: Sequence[float | None]
    #: Medians over the buckets; None without a step.
    median_step_s: float | None
    median_busy_s: float | None
    #: ``median_busy_s`` divided by the median of the gang; None without a step.
    ratio: float | None
    is_slow: bool


@dataclass(frozen=True, kw_only=True)
class AttemptStepTimes:
    """Step times of all ranks of an attempt: a row per rank, a column per time bucket."""

    #: Number of the attempt, from 1.
    attempt: int
    #: Start of each bucket, Unix seconds.
    at_s: Sequence[int]
    #: Length of a bucket, seconds.
    bucket_s: int
    ranks: Sequence[RankSteps]
    #: Median of the ranks' ``median_busy_s``, seconds; None without a step.
    median_busy_s: float | None
    #: Ranks whose ``ratio`` is above the limit, slowest first.
    slow_ranks: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """One part of a step in a breakdown whose parts add up to the whole step."""

    #: A timing of the training library, ``forward`` for the rest of ``train_batch``, or ``rest`` for the unmeasured
    #: rest of a step in a program that does not use the library's loader.
    name: str
    #: Part of the time of each bucket, 0 to 1; None without a step.
    share: Sequence[float | None]
    #: Over the whole time, mean over the ranks.
    total_s: float
    total_share: float


@dataclass(frozen=True, kw_only=True)
class TimingBreakdown:
    """Time of an attempt's steps, divided into parts, by time bucket."""

    #: Number of the attempt, from 1.
    attempt: int
    at_s: Sequence[int]
    bucket_s: int
    #: In the order of a step; of each bucket they add up to 1.
    parts: Sequence[StepPart]
    #: Every timing as measured, by rank. They overlap: ``train_batch`` contains ``backward``.
    totals: Sequence[TimingTotal]


@dataclass(frozen=True, kw_only=True)
class Sparkline:
    """Mean utilization of one host or GPU over time. Intervals without a sample are None."""

    host: str
    #: UUID of a GPU; empty for the host.
    device: str
    #: ``gpu_util`` of a GPU, ``cpu_util`` of a host; percent.
    metric: str
    start: datetime
    #: Length of an interval, seconds.
    step_s: int
    mean: Sequence[float | None]
