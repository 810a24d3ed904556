"""Rows of chunks: the choice of those that answer a query, and their points."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.chunk import ChunkError, decode
from airflow_provider_dtrain.core.series.points import Key, Points, merged
from airflow_provider_dtrain.core.series.tiers import SLICE, WINDOWS, Tier
from airflow_provider_dtrain.store.database.tables import telemetry_chunks

log = logging.getLogger(__name__)

#: Rows whose data one statement reads.
ROWS_PER_STATEMENT = 500
_SMALLEST_S = WINDOWS[Tier.SECOND].chunk_s
_NO_WINDOW = frozenset[int]()

#: Attempt, host and series.
SeriesOf = tuple[int, str, Key]


@dataclass(frozen=True, kw_only=True)
class ChunkQuery:
    """Question for series of attempts."""

    attempt_ids: Sequence[int]
    metrics: Collection[str]
    #: Unix seconds; the end is exclusive.
    start_s: int
    end_s: int
    #: Tier whose intervals are wanted. Other tiers fill the times that it does not have.
    tier: Tier
    hosts: Collection[str] | None = None


@dataclass(frozen=True)
class _Row:
    """A row without its data."""

    id: int
    attempt_id: int
    token: int
    host: str
    metric: str
    step_s: int
    start_s: int
    end_s: int

    @property
    def windows(self) -> range:
        """Numbers of the smallest windows that it covers."""
        return range(self.start_s // _SMALLEST_S, -(-self.end_s // _SMALLEST_S))


@dataclass(frozen=True)
class _Chosen:
    """A row to be read.

    :param hidden: numbers of smallest windows whose points come from a preferred row, by metric
    """

    row: _Row
    hidden: dict[str, frozenset[int]]


def read_points(conn: Connection, query: ChunkQuery, step_s: int) -> tuple[int, dict[SeriesOf, Points]]:
    """Return the points of the series that a query asks for, one per interval.

    The intervals are longer than requested where the store has only a coarser tier, and are of one length everywhere.

    :param step_s: length of the intervals that are requested, seconds
    :returns: length of the intervals, and the points
    """
    parts: dict[SeriesOf, list[Points]] = {}
    chosen = {one.row.id: one for one in _choose(_rows(conn, query), query)}
    only = next(iter(query.metrics)) if len(query.metrics) == 1 else None
    for row_id, data in _data(conn, sorted(chosen)):
        one = chosen[row_id]
        for key, points in decoded(row_id, data, only).items():
            if key.metric not in query.metrics:
                continue
            kept = _visible(points.between(query.start_s, query.end_s), one.hidden.get(key.metric, _NO_WINDOW))
            if kept.at:
                parts.setdefault((one.row.attempt_id, one.row.host, key), []).append(kept)
                step_s = max(step_s, one.row.step_s)
    return step_s, {key: merged(found, step_s) for key, found in parts.items()}


def _rows(conn: Connection, query: ChunkQuery) -> list[_Row]:
    of = telemetry_chunks.c
    where: list[sa.ColumnElement[bool]] = [
        of.attempt_id.in_(query.attempt_ids),
        of.metric.in_([*query.metrics, SLICE]),
        of.end_s > query.start_s,
        of.start_s < query.end_s,
    ]
    if query.hosts is not None:
        where.append(of.host.in_(list(query.hosts)))
    columns = (of.id, of.attempt_id, of.token, of.host, of.metric, of.step_s, of.start_s, of.end_s)
    return [_Row(*row) for row in conn.execute(sa.select(*columns).where(*where))]


def _choose(rows: Sequence[_Row], query: ChunkQuery) -> Iterator[_Chosen]:
    """Yield the rows to read: of each time those of the wanted tier, else of a finer one, else of a coarser one."""
    groups: dict[tuple[int, int, str], list[_Row]] = {}
    for row in rows:
        groups.setdefault((row.attempt_id, row.token, row.host), []).append(row)
    for group in groups.values():
        covered: dict[str, set[int]] = {metric: set() for metric in query.metrics}
        for level in _levels(query.tier):
            taken = [row for row in group if (row.step_s, row.metric == SLICE) == level]
            for row in taken:
                metrics = query.metrics if row.metric == SLICE else (row.metric,)
                hidden = {metric: frozenset(covered[metric].intersection(row.windows)) for metric in metrics}
                if any(len(found) < len(row.windows) for found in hidden.values()):
                    yield _Chosen(row, hidden)
            for row in taken:
                for metric in query.metrics if row.metric == SLICE else (row.metric,):
                    covered[metric].update(row.windows)


def _levels(wanted: Tier) -> list[tuple[int, bool]]:
    """Return (step, is slice) in the order of preference."""
    finer = [tier for tier in sorted(Tier, reverse=True) if tier < wanted]
    coarser = [tier for tier in sorted(Tier) if tier > wanted]
    return [*((int(tier), False) for tier in (wanted, *finer)), (1, True), *((int(tier), False) for tier in coarser)]


def _data(conn: Connection, ids: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    of = telemetry_chunks.c
    for start in range(0, len(ids), ROWS_PER_STATEMENT):
        some = ids[start : start + ROWS_PER_STATEMENT]
        for row in conn.execute(sa.select(of.id, of.data).where(of.id.in_(some))):
            yield row.id, row.data


def decoded(row_id: int, data: bytes, metric: str | None = None) -> dict[Key, Points]:
    """Return the series of a row, none if its data is damaged.

    :param metric: only the series of this metric; None = all
    """
    try:
        return decode(data, metric)
    except ChunkError as error:
        log.warning("Chunk %d of the telemetry is left out: %s", row_id, error)
        return {}


def _visible(points: Points, hidden: frozenset[int]) -> Points:
    if not hidden or not points.at:
        return points
    kept = Points()
    for at, count, mean, minimum, maximum in zip(
        points.at, points.count, points.mean, points.minimum, points.maximum, strict=True
    ):
        if at // _SMALLEST_S not in hidden:
            kept.add(at, count, mean, minimum, maximum)
    return kept
