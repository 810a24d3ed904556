"""Removal of telemetry that is older than its tier keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.tiers import WINDOWS, Tier
from airflow_provider_dtrain.store.database.tables import attempts, telemetry_chunks, telemetry_hosts
from airflow_provider_dtrain.store.telemetry.host_rows import HostKey

#: Rows per transaction, which takes some milliseconds.
BATCH = 500
#: Time after the end of an attempt in which its follower still commits.
SETTLED_AFTER = timedelta(minutes=10)
#: Tier -> the column that says up to where the next tier has its points.
_IN_NEXT_TIER = {Tier.SECOND: telemetry_hosts.c.rolled_10_s, Tier.TEN_SECONDS: telemetry_hosts.c.rolled_60_s}


@dataclass(frozen=True)
class Pruned:
    """Rows of telemetry that were removed, or would be."""

    count: int
    size_bytes: int


def unfinished(conn: Connection, now: datetime) -> list[HostKey]:
    """Return hosts whose attempt has ended, and whose last windows are not rolled up: their follower has died."""
    of = telemetry_hosts.c
    query = (
        sa.select(of.attempt_id, of.token, of.host)
        .join(attempts, attempts.c.id == of.attempt_id)
        .where(of.closed_at.is_(None), of.updated_at < now - SETTLED_AFTER, attempts.c.ended_at < now - SETTLED_AFTER)
        .order_by(of.updated_at)
        .limit(BATCH)
    )
    return [HostKey(*row) for row in conn.execute(query)]


def old_chunks(now: datetime, days: int) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for chunks that are too old, one per tier and one for all.

    :param days: age from which nothing is kept; 0 = no limit
    """
    of = telemetry_chunks.c
    now_s = int(now.timestamp())
    found = []
    for tier, column in _IN_NEXT_TIER.items():
        kept_s = WINDOWS[tier].kept_s or 0
        same = (telemetry_hosts.c[name] == of[name] for name in HostKey._fields)
        has_next = sa.exists().where(*same, column >= of.end_s)
        found.append(sa.and_(of.step_s == int(tier), of.end_s < now_s - kept_s, of.metric != "", has_next))
    if days:
        cut = now_s - days * 86_400
        found += [sa.and_(of.step_s == int(tier), of.end_s < cut) for tier in Tier]
    return found


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
    of = telemetry_hosts.c
    if days:
        old = of.last_s < int(now.timestamp()) - days * 86_400
        conn.execute(telemetry_hosts.delete().where(old, of.closed_at.is_not(None)))
