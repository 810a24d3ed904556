"""Removal of telemetry that is older than its tier keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.tiers import SLICE_S, TIERS
from airflow_provider_dtrain.store.database.tables import telemetry_chunks, telemetry_hosts
from airflow_provider_dtrain.store.telemetry.host_rows import TelemetryKey

#: Rows per transaction, which takes some milliseconds.
BATCH = 500
#: Age of slices that their follower will not compact, because it has died: it does so every ten minutes.
LEFT_S = 3600


@dataclass(frozen=True)
class Pruned:
    """Rows of telemetry that were removed, or would be."""

    count: int
    size_bytes: int


def left_slices(conn: Connection, now: datetime) -> list[TelemetryKey]:
    """Return hosts with slices that their follower has left."""
    of = telemetry_chunks.c
    is_old = (of.step_s == SLICE_S, of.end_s < int(now.timestamp()) - LEFT_S)
    query = sa.select(of.attempt_id, of.token, of.host).where(*is_old).distinct().limit(BATCH)
    return [TelemetryKey(*row) for row in conn.execute(query)]


def old_chunks(now: datetime, days: int) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for chunks that are too old, one per tier and one for slices.

    :param days: age from which nothing is kept; 0 = no limit
    """
    of = telemetry_chunks.c
    now_s = int(now.timestamp())
    ages = {SLICE_S: days * 86_400} | {tier.step_s: tier.kept_s or days * 86_400 for tier in TIERS}
    return [sa.and_(of.step_s == step_s, of.end_s < now_s - age_s) for step_s, age_s in ages.items() if age_s]


def count_chunks(conn: Connection, condition: sa.ColumnElement[bool]) -> Pruned:
    """Return the count and size of chunks."""
    size = sa.func.coalesce(sa.func.sum(sa.func.length(telemetry_chunks.c.data)), 0)
    count, size_bytes = conn.execute(sa.select(sa.func.count(), size).where(condition)).one()
    return Pruned(int(count), int(size_bytes))


def remove_chunks(conn: Connection, condition: sa.ColumnElement[bool]) -> Pruned:
    """Remove at most :data:`BATCH` chunks."""
    of = telemetry_chunks.c
    query = sa.select(of.id, sa.func.length(of.data).label("size")).where(condition).limit(BATCH)
    rows = conn.execute(query.with_for_update(skip_locked=True, of=telemetry_chunks)).all()
    if rows:
        conn.execute(telemetry_chunks.delete().where(of.id.in_([row.id for row in rows])))
    return Pruned(len(rows), sum(int(row.size) for row in rows))


def remove_hosts(conn: Connection, now: datetime, days: int) -> None:
    """Remove the state of hosts whose points are all too old."""
    if days:
        conn.execute(telemetry_hosts.delete().where(telemetry_hosts.c.updated_at < now - timedelta(days=days)))
