"""Rows of chunks: those that answer a query, and their points."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.chunk import ChunkError, decode
from airflow_provider_dtrain.core.series.points import Key, Points, merged
from airflow_provider_dtrain.core.series.tiers import SLICE, SLICE_S, Tier
from airflow_provider_dtrain.store.database.tables import telemetry_chunks

log = logging.getLogger(__name__)

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
    tier: Tier
    hosts: Collection[str] | None = None


def read_points(conn: Connection, query: ChunkQuery, step_s: int) -> dict[SeriesOf, Points]:
    """Return the points of the series that a query asks for, one per interval: from its tier and from slices.

    :param step_s: length of the intervals, a multiple of the tier's, in seconds
    """
    of = telemetry_chunks.c
    where = [
        of.attempt_id.in_(query.attempt_ids),
        of.metric.in_([*query.metrics, SLICE]),
        of.step_s.in_([query.tier.step_s, SLICE_S]),
        of.end_s > query.start_s,
        of.start_s < query.end_s,
    ]
    if query.hosts is not None:
        where.append(of.host.in_(list(query.hosts)))
    only = next(iter(query.metrics)) if len(query.metrics) == 1 else None
    parts: dict[SeriesOf, dict[int, list[Points]]] = {}
    for row in conn.execute(sa.select(of.id, of.attempt_id, of.host, of.step_s, of.data).where(*where)):
        for key, points in decoded(row.id, row.data, only).items():
            if key.metric in query.metrics and (kept := points.between(query.start_s, query.end_s)).at:
                parts.setdefault((row.attempt_id, row.host, key), {}).setdefault(row.step_s or 1, []).append(kept)
    return {key: _reduced(by_step, step_s) for key, by_step in parts.items()}


def _reduced(by_step: Mapping[int, Sequence[Points]], step_s: int) -> Points:
    """Return one series. Points of one step are usually at equal distances, which takes a tenth of the time."""
    found = [merged(some, step_s) for some in by_step.values()]
    return found[0] if len(found) == 1 else merged(found, step_s)


def decoded(row_id: int, data: bytes, metric: str | None = None) -> dict[Key, Points]:
    """Return the series of a row, none if its data is damaged.

    :param metric: only the series of this metric; None = all
    """
    try:
        return decode(data, metric)
    except ChunkError as error:
        log.warning("Chunk %d of the telemetry is left out: %s", row_id, error)
        return {}
