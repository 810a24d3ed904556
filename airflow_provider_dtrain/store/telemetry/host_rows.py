"""Rows of hosts: the part of their files that is stored, and their chunks as they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.series.chunk import encode
from airflow_provider_dtrain.core.series.points import Key, Points
from airflow_provider_dtrain.core.series.tiers import SLICE, SLICE_S, Tier
from airflow_provider_dtrain.store.database.rows import record_of
from airflow_provider_dtrain.store.database.statements import Values
from airflow_provider_dtrain.store.database.tables import telemetry_chunks, telemetry_hosts
from airflow_provider_dtrain.store.records.telemetry import TelemetryGap, TelemetryState


class TelemetryKey(NamedTuple):
    """Primary key of a row of ``telemetry_hosts``."""

    attempt_id: int
    token: int
    host: str

    @property
    def where(self) -> tuple[sa.ColumnElement[bool], ...]:
        """Condition for this row."""
        of = telemetry_hosts.c
        return of.attempt_id == self.attempt_id, of.token == self.token, of.host == self.host


@dataclass(frozen=True, kw_only=True)
class ChunkRow:
    """A row of ``telemetry_chunks`` that is about to be written."""

    metric: str
    step_s: int
    start_s: int
    end_s: int
    data: bytes

    def values(self, key: TelemetryKey) -> Values:
        """Return the columns of the row."""
        return {**key._asdict(), **self.__dict__}


def slice_of(series: Mapping[Key, Points]) -> ChunkRow:
    """Return the slice for some points."""
    start = min(points.at[0] for points in series.values())
    end = max(points.at[-1] for points in series.values()) + 1
    return ChunkRow(metric=SLICE, step_s=SLICE_S, start_s=start, end_s=end, data=encode(series))


def chunks_of(series: Mapping[Key, Points], tier: Tier, start: int) -> list[ChunkRow]:
    """Return the chunks of a tier, one per metric, for points of one of its windows with its intervals."""
    by_metric: dict[str, dict[Key, Points]] = {}
    for key, points in series.items():
        by_metric.setdefault(key.metric, {})[key] = points
    end = start + tier.chunk_s
    return [
        ChunkRow(metric=metric, step_s=tier.step_s, start_s=start, end_s=end, data=encode(part))
        for metric, part in by_metric.items()
    ]


def insert_chunks(conn: Connection, key: TelemetryKey, rows: Sequence[ChunkRow]) -> None:
    """Insert chunks of one host with one statement."""
    if rows:
        conn.execute(telemetry_chunks.insert(), [row.values(key) for row in rows])


def state_of(row: Row[Any]) -> TelemetryState:
    """Return a row of ``telemetry_hosts`` as a record."""
    return record_of(TelemetryState, row, gaps=gaps_of(row.gaps))


def gaps_of(stored: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> tuple[TelemetryGap, ...]:
    """Return the gaps that :func:`with_gaps` has counted."""
    return tuple(
        TelemetryGap(stream=stream, code=code, lines=found["lines"], size_bytes=found["bytes"], first_at_s=found["at"])
        for stream, codes in stored.items()
        for code, found in codes.items()
    )


def with_gaps(stored: Mapping[str, Any], new: Sequence[TelemetryGap]) -> JsonObject:
    """Return stored gaps and new ones, counted per stream and code: their number is bounded."""
    found = {stream: {code: dict(one) for code, one in codes.items()} for stream, codes in stored.items()}
    for gap in new:
        one = found.setdefault(gap.stream, {}).setdefault(gap.code, {"lines": 0, "bytes": 0, "at": gap.first_at_s})
        one["lines"] += gap.lines
        one["bytes"] += gap.size_bytes
    return found
