"""Sparklines of hosts and GPUs, from one row per host and attempt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.utilization import MINUTE_S, MINUTES, Utilization
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.database.tables import telemetry_hosts
from airflow_provider_dtrain.store.records.telemetry import Sparkline

#: Hosts that one statement names.
HOSTS_PER_STATEMENT = 500


def find_sparklines(
    conn: Connection, hosts: Collection[str], since: datetime, now: datetime, points: int
) -> list[Sparkline]:
    """Return the mean utilization of hosts and GPUs from a time on, in at most ``points`` intervals."""
    if not 1 <= points <= MINUTES:
        raise UserError(f"points must be from 1 to {MINUTES}, got {points}: the store has a value per minute.")
    last = int(now.timestamp()) // MINUTE_S
    first = max(last - MINUTES + 1, int(since.timestamp()) // MINUTE_S)
    rows: dict[tuple[str, str, str], list[tuple[int, list[float | None]]]] = {}
    for host, utilization in _stored(conn, sorted(set(hosts)), now):
        for (metric, device), values in utilization.rows().items():
            rows.setdefault((host, device, metric), []).append((utilization.last - MINUTES + 1, values))
    width = max(1, -(-(last - first + 1) // points))
    start = datetime.fromtimestamp(first * MINUTE_S, UTC)
    found = []
    for (host, device, metric), parts in sorted(rows.items()):
        mean = _grouped(_joined(parts, first, last), width)
        if any(value is not None for value in mean):
            found.append(
                Sparkline(host=host, device=device, metric=metric, start=start, step_s=width * MINUTE_S, mean=mean)
            )
    return found


def _stored(conn: Connection, hosts: Sequence[str], now: datetime) -> list[tuple[str, Utilization]]:
    of = telemetry_hosts.c
    since = now - timedelta(minutes=MINUTES)
    found = []
    for start in range(0, len(hosts), HOSTS_PER_STATEMENT):
        where = (of.host.in_(hosts[start : start + HOSTS_PER_STATEMENT]), of.updated_at >= since)
        rows = conn.execute(sa.select(of.host, of.utilization).where(*where))
        found += [(str(row.host), Utilization.parse(row.utilization)) for row in rows]
    return found


def _joined(parts: Sequence[tuple[int, list[float | None]]], first: int, last: int) -> list[float | None]:
    """Return one value per minute from several attempts, the mean where they overlap."""
    by_minute: list[list[float]] = [[] for _ in range(first, last + 1)]
    for start, values in parts:
        for minute, value in enumerate(values, start):
            if value is not None and first <= minute <= last:
                by_minute[minute - first].append(value)
    return [fmean(values) if values else None for values in by_minute]


def _grouped(values: Sequence[float | None], width: int) -> list[float | None]:
    groups = (values[start : start + width] for start in range(0, len(values), width))
    known = ([value for value in group if value is not None] for group in groups)
    return [round(fmean(group), 1) if group else None for group in known]
