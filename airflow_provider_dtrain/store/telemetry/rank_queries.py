"""Step times and parts of steps of an attempt, from the timings of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.metrics import CALLBACKS, INSIDE_CHECKPOINT, SAMPLED_TIMINGS, timing_of
from airflow_provider_dtrain.core.series.points import Points
from airflow_provider_dtrain.core.series.step_times import (
    BUCKET_S,
    EARLY_S,
    EXCHANGE,
    OF_STEP,
    PARTS,
    RANK_METRICS,
    REST,
    STEP,
    WHOLE,
    Pace,
    SlowRule,
    busy_times,
    median_of,
    pace_of,
    ratios,
    slow_ranks,
    slow_rule,
)
from airflow_provider_dtrain.resources.telemetry import TimingTotal
from airflow_provider_dtrain.store.database.tables import attempts, configs, trials
from airflow_provider_dtrain.store.records.telemetry import (
    AttemptStepTimes,
    RankSteps,
    StepPart,
    TimingBreakdown,
)
from airflow_provider_dtrain.store.telemetry.queries import AttemptOf, Span, find_points

#: Timing -> points of one rank.
OfRank = dict[str, Points]


def find_step_times(conn: Connection, of: AttemptOf, span: Span | None, buckets: int) -> AttemptStepTimes:
    """Return the step times of each rank by time bucket, and the ranks that are slow."""
    bucket_s, at, found = _by_rank(conn, of, [*OF_STEP, STEP, WHOLE, EXCHANGE], span, buckets)
    rows = {rank: _steps_of(rank, host, timings, at) for rank, (host, timings) in found.items()}
    paces = {rank: pace for rank, (_, pace) in rows.items() if pace is not None}
    middle = median_of([pace.busy_s for pace in paces.values()])
    ratio = ratios(paces)
    slow = _slow_ranks(rule_of(conn, of), bucket_s, at, found)
    return AttemptStepTimes(
        attempt=of.number,
        at_s=at,
        bucket_s=bucket_s,
        ranks=[replace(row, ratio=ratio.get(rank), is_slow=rank in slow) for rank, (row, _) in rows.items()],
        median_busy_s=middle,
        slow_ranks=slow,
    )


def rule_of(conn: Connection, of: AttemptOf) -> SlowRule:
    """Return the rule for slow ranks in the configuration of an attempt's trial."""
    query = (
        sa.select(configs.c.document["profiling"])
        .join(trials, trials.c.config_id == configs.c.config_id)
        .join(attempts, attempts.c.trial_id == trials.c.id)
        .where(attempts.c.id == of.attempt_id)
    )
    profiling = conn.scalar(query)
    return slow_rule(profiling if isinstance(profiling, Mapping) else {})


def find_breakdown(conn: Connection, of: AttemptOf, span: Span | None, buckets: int) -> TimingBreakdown:
    """Return the parts of the steps by time bucket, mean over the ranks, and the totals of each rank."""
    bucket_s, at, found = _by_rank(conn, of, RANK_METRICS, span, buckets)
    columns = {
        name: _totals([one for _, timings in found.values() for one in _of_part(timings, name)], at) for name in PARTS
    }
    columns[REST] = _rest([timings for _, timings in found.values()], at)
    sums = [sum(column[index] for column in columns.values()) for index in range(len(at))]
    whole = sum(sums) or 1.0
    return TimingBreakdown(
        attempt=of.number,
        at_s=at,
        bucket_s=bucket_s,
        parts=[
            StepPart(
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
            for name in (*(name for name in RANK_METRICS if name in timings), *sorted(_callbacks(timings)))
        ],
    )


def _slow_ranks(rule: SlowRule, bucket_s: int, at: Sequence[int], found: Mapping[int, tuple[str, OfRank]]) -> list[int]:
    """Return the slow ranks, from buckets in which all ranks have a line."""
    least_s = max(BUCKET_S, bucket_s)
    starts = list(range(at[0] - at[0] % least_s, at[-1] + 1, least_s)) if at else []
    paces = {}
    for rank, (host, timings) in found.items():
        points = {name: one.reduced(least_s) for name, one in timings.items()} if bucket_s < least_s else timings
        pace = _steps_of(rank, host, points, starts if bucket_s < least_s else at)[1]
        if pace is not None:
            paces[rank] = pace
    return slow_ranks(paces, rule, least_s)


def _by_rank(
    conn: Connection, of: AttemptOf, metrics: Sequence[str], span: Span | None, buckets: int
) -> tuple[int, list[int], dict[int, tuple[str, OfRank]]]:
    """Return the length of a bucket, the starts of all buckets, and rank -> host and timings by bucket."""
    if span is None:
        return 1, [], {}
    bucket_s = max(BUCKET_S if span.end_s - span.start_s > EARLY_S else 1, span.step_for(buckets))
    points = find_points(conn, [of], metrics, span, bucket_s)
    found: dict[int, tuple[str, OfRank]] = {}
    for (_, host, key), one in sorted(points.items(), key=lambda pair: pair[0][2].rank or 0):
        if key.rank is not None:
            found.setdefault(key.rank, (host, {}))[1][timing_of(key.metric, key.device)] = one
    times = [at for _, timings in found.values() for one in timings.values() for at in (one.at[0], one.at[-1])]
    at = list(range(min(times), max(times) + 1, bucket_s)) if times else []
    return bucket_s, at, found


def _steps_of(rank: int, host: str, timings: OfRank, at: Sequence[int]) -> tuple[RankSteps, Pace | None]:
    """Return the step times of a rank, not yet compared with the gang, and its pace, None without a step."""
    step = timings.get(STEP) or timings.get(WHOLE, Points())
    counts = dict(zip(step.at, step.count, strict=True))
    totals = _totals([timings.get(name) for name in (OF_STEP if STEP in timings else (WHOLE,))], at)
    steps = [total / counts[when] if counts.get(when) else None for when, total in zip(at, totals, strict=True)]
    exchange = timings.get(EXCHANGE, Points())
    means = dict(zip(exchange.at, exchange.mean, strict=True))
    exchanges = [means.get(when) for when in at]
    busy = busy_times(steps, exchanges)
    pace = pace_of(steps, exchanges, [counts.get(when, 0) for when in at])
    row = RankSteps(
        rank=rank,
        host=host,
        step_s=steps,
        busy_s=busy,
        median_step_s=median_of(steps),
        median_busy_s=median_of(busy),
        ratio=None,
        is_slow=False,
    )
    return row, pace


def _callbacks(timings: OfRank) -> list[str]:
    return [name for name in timings if name.startswith(f"{CALLBACKS}.")]


def _of_part(timings: OfRank, name: str) -> list[Points | None]:
    """Return the timings of one rank that are a part of the steps."""
    if name != CALLBACKS:
        return [timings.get(name)]
    return [timings[one] for one in _callbacks(timings) if not one.endswith(f".{INSIDE_CHECKPOINT}")]


def _rest(ranks: Sequence[OfRank], at: Sequence[int]) -> list[float]:
    """Return the time of whole steps that no part has measured, in each bucket, of all ranks together."""
    found = [0.0] * len(at)
    for timings in ranks:
        if WHOLE in timings:
            whole, parts = _totals([timings[WHOLE]], at), _totals([timings.get(name) for name in PARTS], at)
            found = [sum_ + max(0.0, all_ - part) for sum_, all_, part in zip(found, whole, parts, strict=True)]
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
