"""Timings of ranks and system metrics of hosts over an attempt."""

from __future__ import annotations

from dataclasses import dataclass


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
    #: This time divided by the median of the gang.
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Summary of an attempt: totals of its timings, ranges of the system metrics of its hosts, and slow ranks."""

    attempt: int
    timings: list[TimingTotal]
    system: list[MetricRange]
    slow_ranks: list[SlowRank]
