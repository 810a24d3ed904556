"""Answers to the questions of pages and commands, from the chunks of attempts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.metrics import (
    FACTS,
    FACTS_S,
    OF_RANKS,
    SYSTEM_METRICS,
    is_of_gpu,
    timing_of,
)
from airflow_provider_dtrain.core.series.points import Key, Points
from airflow_provider_dtrain.core.series.step_times import LINE_S, RANK_METRICS
from airflow_provider_dtrain.core.series.tiers import tier_for
from airflow_provider_dtrain.errors import NotFoundError, UserError
from airflow_provider_dtrain.resources.telemetry import MetricRange
from airflow_provider_dtrain.store.database.tables import attempts, ranks, telemetry_hosts, trials
from airflow_provider_dtrain.store.records.telemetry import Series, SeriesKind
from airflow_provider_dtrain.store.telemetry.chunk_rows import ChunkQuery, SeriesOf, read_points

#: Most points of an answer, all of its series together, and most points of one series.
POINTS_MOST, SERIES_POINTS_MOST = 80_000, 20_000
#: Stored points of an answer beyond which a coarser tier is read, if its intervals are not longer than this multiple.
READ_MOST, COARSER_MOST = 200_000, 2
#: Fewest points of a series that may be requested, and fewest that a series gets when many share an answer.
POINTS_LEAST = 10
#: Intervals of which ranges are made, seconds.
RANGE_S = 60
#: A pause that is longer than this multiple of the usual distance of two points is a gap.
GAP_RATIO = 2


@dataclass(frozen=True)
class AttemptOf:
    """An attempt of a trial.

    :param number: from 1
    """

    attempt_id: int
    number: int


@dataclass(frozen=True)
class Span:
    """A span of time in Unix seconds, without its end.

    :param age_s: age of its start
    """

    start_s: int
    end_s: int
    age_s: int

    def step_for(self, points: int, series: int = 1) -> int:
        """Return the length of intervals of which this span has at most ``points``: a multiple of a tier's.

        :param series: number of series, of which many are read from a coarser tier if that has nearly as many points
        """
        length = self.end_s - self.start_s
        least = max(1, -(-length // points))
        tier_s = tier_for(least, self.age_s).step_s
        if series * length // tier_s > READ_MOST:
            tier_s = tier_for(COARSER_MOST * least, self.age_s).step_s
        return -(-least // tier_s) * tier_s


@dataclass(frozen=True)
class SeriesQuery:
    """Arguments of :meth:`Telemetry.series`, checked."""

    attempts: Sequence[AttemptOf]
    metrics: Sequence[str]
    hosts: Collection[str] | None
    ranks: Collection[int] | None
    span: Span
    max_points: int


def check_metrics(kind: SeriesKind, metrics: Collection[str] | None) -> list[str]:
    """Return the metrics of a kind that are asked for, in the usual order.

    :raises UserError: one of them is unknown
    """
    known = list(SYSTEM_METRICS) if kind == "system" else list(RANK_METRICS)
    unknown = sorted(set(metrics or ()) - set(known))
    if unknown:
        shown = ", ".join(f"'{name:.40}'" for name in unknown[:5])
        raise UserError(f"metrics must be of kind '{kind}' ({', '.join(known)}), got {shown}.")
    return [name for name in known if metrics is None or name in metrics]


def check_points(points: int) -> None:
    """Check a number of points or buckets.

    :raises UserError: it is beyond the limits
    """
    if not POINTS_LEAST <= points <= SERIES_POINTS_MOST:
        raise UserError(
            f"The number of points must be from {POINTS_LEAST} to {SERIES_POINTS_MOST}, got {points}. "
            "Narrow the time span to see more detail."
        )


def attempts_of(conn: Connection, trial_id: int, number: int | None) -> list[AttemptOf]:
    """Return the attempts of a trial, oldest first.

    :param number: only this one; None = all
    :raises NotFoundError: there is no such trial or attempt
    """
    query = sa.select(attempts.c.id, attempts.c.number).where(attempts.c.trial_id == trial_id)
    found = [AttemptOf(row.id, row.number) for row in conn.execute(query.order_by(attempts.c.number))]
    if not found and conn.scalar(sa.select(trials.c.id).where(trials.c.id == trial_id)) is None:
        raise NotFoundError(f"There is no trial {trial_id}.")
    if number is None:
        return found
    chosen = [one for one in found if one.number == number]
    if not chosen:
        raise NotFoundError(f"Trial {trial_id} has no attempt {number}; it has {len(found)}.")
    return chosen


def latest_of(conn: Connection, trial_id: int, number: int | None) -> AttemptOf:
    """Return one attempt of a trial.

    :param number: None = the latest
    :raises NotFoundError: there is no such trial or attempt
    """
    found = attempts_of(conn, trial_id, number)
    if not found:
        raise NotFoundError(f"Trial {trial_id} has no attempt.")
    return found[-1]


def span_of(
    conn: Connection,
    of: Sequence[AttemptOf],
    now: datetime,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Span | None:
    """Return the span of the stored points of some attempts, cut to the requested times, None without points."""
    of_attempts = telemetry_hosts.c.attempt_id.in_([one.attempt_id for one in of])
    columns = sa.func.min(telemetry_hosts.c.first_s), sa.func.max(telemetry_hosts.c.last_s)
    first, last = conn.execute(sa.select(*columns).where(of_attempts, telemetry_hosts.c.last_s > 0)).one()
    if first is None:
        return None
    start = max(int(first), int(since.timestamp())) if since is not None else int(first)
    end = min(int(last) + 1, -int(-until.timestamp() // 1)) if until is not None else int(last) + 1
    return Span(start, end, int(now.timestamp()) - start) if start < end else None


def find_points(
    conn: Connection,
    of: Sequence[AttemptOf],
    metrics: Collection[str],
    span: Span,
    step_s: int,
    hosts: Collection[str] | None = None,
) -> dict[SeriesOf, Points]:
    """Return the points of series in a span of time, one per interval of a length from :meth:`Span.step_for`."""
    query = ChunkQuery(
        attempt_ids=[one.attempt_id for one in of],
        metrics=frozenset(metrics),
        start_s=span.start_s - span.start_s % step_s,
        end_s=span.end_s,
        tier=tier_for(step_s, span.age_s),
        hosts=hosts,
    )
    return read_points(conn, query, step_s)


def find_series(conn: Connection, query: SeriesQuery) -> list[Series]:
    """Return the series of attempts, reduced to the number of points that the query allows."""
    if not query.metrics:
        return []
    facts = FACTS.intersection(query.metrics)
    of_facts = _expected_series(conn, query, facts)
    others = _expected_series(conn, query, set(query.metrics) - facts)
    step = _step_for(query, others + of_facts // FACTS_S)
    if step >= FACTS_S:
        step = _step_for(query, others + of_facts)
    found = find_points(conn, query.attempts, query.metrics, query.span, step, query.hosts)
    numbers = {one.attempt_id: one.number for one in query.attempts}
    order = {metric: index for index, metric in enumerate(query.metrics)}
    kept = [
        (numbers[attempt_id], order[key.metric], host, key, points)
        for (attempt_id, host, key), points in found.items()
        if query.ranks is None or key.rank in query.ranks
    ]
    kept.sort(key=lambda one: (*one[:3], one[3].device, one[3].rank or 0))
    return [_series(number, host, key, points, step) for number, _, host, key, points in kept]


def _step_for(query: SeriesQuery, series: int) -> int:
    """Return the length of intervals of which that many series have points at each time."""
    most = POINTS_MOST // max(1, series)
    return query.span.step_for(max(POINTS_LEAST, min(query.max_points, most)), max(1, series))


def _expected_series(conn: Connection, query: SeriesQuery, metrics: Collection[str]) -> int:
    """Return about how many series of some metrics an answer has: one per GPU or rank, and one per host and its metric.

    Attempts follow each other, so they do not share the points of an answer.
    """
    if not metrics:
        return 0
    where = [ranks.c.attempt_id.in_([one.attempt_id for one in query.attempts])]
    if query.hosts is not None:
        where.append(ranks.c.host.in_(list(query.hosts)))
    if query.ranks is not None:
        where.append(ranks.c.rank.in_(list(query.ranks)))
    counts = sa.select(sa.func.count().label("ranks"), sa.func.count(sa.distinct(ranks.c.host)).label("hosts"))
    of_hosts = sum(metric in SYSTEM_METRICS and not is_of_gpu(metric) and metric not in OF_RANKS for metric in metrics)
    found = conn.execute(counts.where(*where).group_by(ranks.c.attempt_id)).all()
    each = [of_hosts * row.hosts + (len(metrics) - of_hosts) * row.ranks for row in found]
    return max(each, default=0)


def _series(attempt: int, host: str, key: Key, points: Points, step_s: int) -> Series:
    at, gaps = _with_gaps(points.at, step_s if key.rank is None else max(step_s, LINE_S))
    return Series(
        attempt=attempt,
        host=host,
        device=key.device if key.rank is None else "",
        rank=key.rank,
        metric=key.metric if key.rank is None else timing_of(key.metric, key.device),
        unit=SYSTEM_METRICS.get(key.metric, "s"),
        step_s=step_s,
        at_s=at,
        mean=_spread(points.mean, gaps),
        minimum=_spread(points.minimum, gaps),
        maximum=_spread(points.maximum, gaps),
    )


def _with_gaps(at: Sequence[int], least_s: int) -> tuple[list[int], list[int]]:
    """Return the times with one more in each gap, and the index of the point behind each gap.

    :param least_s: usual distance of two points at least
    """
    distances = [after - before for before, after in zip(at, at[1:], strict=False)]
    usual = max(least_s, sorted(distances)[len(distances) // 2] if distances else least_s)
    gaps = [index + 1 for index, distance in enumerate(distances) if distance > GAP_RATIO * usual]
    found: list[int] = []
    start = 0
    for index in gaps:
        found += [*at[start:index], at[index - 1] + usual]
        start = index
    return [*found, *at[start:]], gaps


def _spread(values: Sequence[float], gaps: Sequence[int]) -> list[float | None]:
    found: list[float | None] = []
    start = 0
    for index in gaps:
        found += [*values[start:index], None]
        start = index
    return [*found, *values[start:]]


def find_ranges(conn: Connection, of: AttemptOf, span: Span) -> list[MetricRange]:
    """Return the range of each system metric over an attempt, by host, device, metric and rank."""
    found = find_points(conn, [of], SYSTEM_METRICS, span, RANGE_S)
    order = {metric: index for index, metric in enumerate(SYSTEM_METRICS)}
    whole = {of_: points for of_, points in found.items() if points.at}
    keys = sorted(whole, key=lambda one: (one[1], one[2].device, order[one[2].metric], one[2].rank or 0))
    return [_range(host, key, whole[attempt_id, host, key]) for attempt_id, host, key in keys]


def _range(host: str, key: Key, points: Points) -> MetricRange:
    count = sum(points.count)
    mean = sum(value * weight for value, weight in zip(points.mean, points.count, strict=True)) / count
    return MetricRange(
        host=host,
        device=key.device or None,
        rank=key.rank,
        metric=key.metric,
        unit=SYSTEM_METRICS[key.metric],
        minimum=min(points.minimum),
        mean=mean,
        maximum=max(points.maximum),
        count=count,
    )
