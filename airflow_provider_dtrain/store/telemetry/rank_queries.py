"""Step times and parts of steps of an attempt, from the timings of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.points import Points
from airflow_provider_dtrain.core.series.step_times import (
    EXCHANGE,
    OF_STEP,
    PARTS,
    RANK_METRICS,
    STEP,
    median_of,
    slow_ranks,
)
from airflow_provider_dtrain.core.series.tiers import Tier
from airflow_provider_dtrain.core.telemetry import SAMPLED_TIMINGS
from airflow_provider_dtrain.store.records.telemetry import (
    RankSteps,
    StepTimes,
    TimingBreakdown,
    TimingPart,
    TimingTotal,
)
from airflow_provider_dtrain.store.telemetry.queries import AttemptOf, find_points, span_of

#: Timing -> points of one rank.
OfRank = dict[str, Points]


def find_step_times(
    conn: Connection, of: AttemptOf, buckets: int, since: datetime | None, until: datetime | None
) -> StepTimes:
    """Return the step times of each rank by time bucket, and the ranks that are slow."""
    bucket_s, at, found = _by_rank(conn, of, [*OF_STEP, STEP, EXCHANGE], buckets, since, until)
    rows = {rank: (host, *_steps(timings, at)) for rank, (host, timings) in found.items()}
    medians = {rank: median_of(busy) for rank, (_, _, busy) in rows.items()}
    middle, slow = slow_ranks(medians)
    return StepTimes(
        attempt=of.number,
        at_s=at,
        bucket_s=bucket_s,
        ranks=[
            RankSteps(
                rank=rank,
                host=host,
                step_s=steps,
                busy_s=busy,
                median_step_s=median_of(steps),
                median_busy_s=own,
                ratio=own / middle if own is not None and middle else None,
                is_slow=rank in slow,
            )
            for rank, (host, steps, busy) in rows.items()
            for own in (medians[rank],)
        ],
        median_busy_s=middle,
        slow_ranks=list(slow),
    )


def find_breakdown(
    conn: Connection, of: AttemptOf, buckets: int, since: datetime | None, until: datetime | None
) -> TimingBreakdown:
    """Return the parts of the steps by time bucket, mean over the ranks, and the totals of each rank."""
    bucket_s, at, found = _by_rank(conn, of, RANK_METRICS, buckets, since, until)
    columns = {name: _totals([timings.get(name) for _, timings in found.values()], at) for name in PARTS}
    sums = [sum(column[index] for column in columns.values()) for index in range(len(at))]
    whole = sum(sums) or 1.0
    return TimingBreakdown(
        attempt=of.number,
        at_s=at,
        bucket_s=bucket_s,
        parts=[
            TimingPart(
                name=name,
                share=[value / total if total else None for value, total in zip(column, sums, strict=True)],
                total_s=sum(column) / max(1, len(found)),
                total_share=sum(column) / whole,
            )
            for name, column in columns.items()
            if any(column)
        ],
        totals=[
            _total(rank, name, timings[name])
            for rank, (_, timings) in found.items()
            for name in RANK_METRICS
            if name in timings
        ],
    )


def _by_rank(
    conn: Connection,
    of: AttemptOf,
    metrics: Sequence[str],
    buckets: int,
    since: datetime | None,
    until: datetime | None,
) -> tuple[int, list[int], dict[int, tuple[str, OfRank]]]:
    """Return the length of a bucket, the starts of all buckets, and rank -> host and timings by bucket."""
    span = span_of(conn, [of], since, until)
    if span is None:
        return int(Tier.SECOND), [], {}
    bucket_s, points = find_points(conn, [of], metrics, span, span.step_for(buckets))
    found: dict[int, tuple[str, OfRank]] = {}
    for (_, host, key), one in sorted(points.items(), key=lambda pair: pair[0][2].rank or 0):
        if key.rank is not None:
            found.setdefault(key.rank, (host, {}))[1][key.metric] = one
    times = [at for _, timings in found.values() for one in timings.values() for at in (one.at[0], one.at[-1])]
    at = list(range(min(times), max(times) + 1, bucket_s)) if times else []
    return bucket_s, at, found


def _steps(timings: OfRank, at: Sequence[int]) -> tuple[list[float | None], list[float | None]]:
    """Return the mean step time and the mean busy time of a rank in each bucket."""
    counts = dict(zip(timings[STEP].at, timings[STEP].count, strict=True)) if STEP in timings else {}
    totals = _totals([timings.get(name) for name in OF_STEP], at)
    steps = [total / counts[when] if counts.get(when) else None for when, total in zip(at, totals, strict=True)]
    waits = _filled(timings.get(EXCHANGE), at)
    busy = [None if step is None else max(0.0, step - wait) for step, wait in zip(steps, waits, strict=True)]
    return steps, busy


def _filled(points: Points | None, at: Sequence[int]) -> list[float]:
    """Return the mean in each bucket, and the one before it in a bucket without a sample."""
    means = dict(zip(points.at, points.mean, strict=True)) if points is not None else {}
    found = []
    last = points.mean[0] if points is not None and points.mean else 0.0
    for when in at:
        last = means.get(when, last)
        found.append(last)
    return found


def _totals(series: Sequence[Points | None], at: Sequence[int]) -> list[float]:
    """Return the total time in each bucket, of several series together."""
    found: dict[int, float] = dict.fromkeys(at, 0.0)
    for points in series:
        if points is not None:
            for when, count, mean in zip(points.at, points.count, points.mean, strict=True):
                found[when] += count * mean
    return list(found.values())


def _total(rank: int, name: str, points: Points) -> TimingTotal:
    count = sum(points.count)
    total = sum(weight * mean for weight, mean in zip(points.count, points.mean, strict=True))
    return TimingTotal(
        rank=rank,
        name=name,
        count=count,
        total_s=None if name in SAMPLED_TIMINGS else total,
        mean_s=total / count,
        max_s=max(points.maximum),
    )
