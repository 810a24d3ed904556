"""Timings of ranks and system metrics of hosts over an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dtrain.core.series.slow_causes import SlowCause


@dataclass(frozen=True, kw_only=True)
class TimingTotal:
    """Total of one timing over an attempt, of one rank."""

    rank: int
    name: str
    count: int
    #: None for a timing that is only sampled.
    total_s: float | None
    mean_s: float
    max_s: float


@dataclass(frozen=True, kw_only=True)
class MetricRange:
    """Range of one system metric over an attempt."""

    host: str
    #: UUID of the GPU; None: of the whole host.
    device: str | None
    #: None: not of a single rank.
    rank: int | None = None
    metric: str
    unit: str
    minimum: float
    mean: float
    maximum: float
    #: Number of samples.
    count: int


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A rank whose steps take longer than those of the other ranks."""

    rank: int
    host: str
    #: Median time that it needs for a step, without the wait for the other ranks; None: unknown.
    busy_s: float | None
    #: This time divided by the median of the other ranks.
    ratio: float


@dataclass(frozen=True, kw_only=True)
class NamedStraggler:
    """A rank that its follower named as slow while it ran."""

    #: Number of the attempt, from 1.
    attempt: int
    rank: int
    host: str
    since: datetime
    #: None: it is slow now.
    until: datetime | None
    #: Its time for a step, without the wait for other ranks, divided by that of the other ranks.
    ratio: float
    #: Part of each step, 0 to 1, for which the gang waits for it.
    cost: float
    cause: SlowCause
    #: One or two sentences with the facts that show the cause, and what to do.
    text: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Summary of an attempt: totals of its timings, ranges of the system metrics of its hosts, and slow ranks."""

    attempt: int
    timings: list[TimingTotal]
    system: list[MetricRange]
    slow_ranks: list[SlowRank]
    #: Those that were named while it ran.
    stragglers: list[NamedStraggler]
