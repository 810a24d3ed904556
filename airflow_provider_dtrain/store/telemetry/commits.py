"""Commits of followers: everything is computed before the transaction, which then writes two rows per host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.statements import Values
from airflow_provider_dtrain.store.database.tables import allocations, attempts, telemetry_chunks, telemetry_hosts
from airflow_provider_dtrain.store.records.telemetry import HostTelemetry, TelemetryState
from airflow_provider_dtrain.store.telemetry.host_rows import TelemetryKey, gaps_of, slice_of, with_gaps
from airflow_provider_dtrain.store.telemetry.sparklines import with_utilization


class OvertakenError(Exception):
    """Another writer has changed the state of a host."""


class RunRows(NamedTuple):
    """Rows of ``telemetry_hosts`` of an attempt's current run."""

    token: int
    hosts: Mapping[str, sa.Row[Any]]


class Commit:
    """One host's part of a commit.

    :param row: state of the host that the commit continues, None for the first one
    """

    def __init__(self, key: TelemetryKey, part: HostTelemetry, row: sa.Row[Any] | None) -> None:
        self.key = key
        self.is_first = row is None
        self.commits = row.commits if row is not None else 0
        series = {key: points.in_order() for key, points in part.series.items() if points.at}
        self.slice = slice_of(series) if series else None
        starts = [self.slice.start_s] if self.slice else []
        ends = [self.slice.end_s - 1] if self.slice else []
        if row is not None and row.last_s:
            starts, ends = [*starts, row.first_s], [*ends, row.last_s]
        self.values: Values = {
            "commits": self.commits + 1,
            "positions": {**(row.positions if row is not None else {}), **part.positions},
            "gaps": with_gaps(row.gaps if row is not None else {}, part.gaps),
            "first_s": min(starts, default=0),
            "last_s": max(ends, default=0),
            "utilization": with_utilization(row.utilization if row is not None else None, series),
        }

    @property
    def state(self) -> TelemetryState:
        """Return the state of the host after this commit."""
        names = ("commits", "positions", "first_s", "last_s")
        return TelemetryState(
            host=self.key.host,
            token=self.key.token,
            gaps=gaps_of(self.values["gaps"]),
            **{name: self.values[name] for name in names},
        )

    def write(self, conn: Connection, now: datetime) -> None:
        """Write the state of the host.

        :raises OvertakenError: another writer was faster
        """
        values = {**self.values, "updated_at": now}
        if self.is_first:
            done = statements.first(conn, _BEGIN, {**self.key._asdict(), **values})
        else:
            found = {f"of_{name}": value for name, value in self.key._asdict().items()}
            done = statements.first(conn, _CONTINUE, {**found, "known": self.commits, **values})
        if done is None:
            raise OvertakenError


def rows_of(conn: Connection, attempt_id: int) -> RunRows:
    """Return the state of each host of an attempt's current run."""
    rows = statements.rows(conn, _ROWS, {"attempt": attempt_id})
    token = int(rows[0].current or 0) if rows else 0
    return RunRows(token, {row.host: row for row in rows if row.host is not None})


def write_all(conn: Connection, commits: Sequence[Commit], now: datetime) -> None:
    """Write commits of several hosts.

    :raises OvertakenError: another writer was faster with one of them
    """
    # In one order everywhere, so that two writers never wait for each other.
    for commit in sorted(commits, key=lambda one: one.key.host):
        commit.write(conn, now)
    rows = [commit.slice.values(commit.key) for commit in commits if commit.slice is not None]
    statements.add(conn, telemetry_chunks, *rows)


_ROWS = (
    sa.select(allocations.c.token.label("current"), telemetry_hosts)
    .select_from(attempts)
    .join(allocations, allocations.c.id == attempts.c.allocation_id)
    .outerjoin(
        telemetry_hosts,
        sa.and_(telemetry_hosts.c.attempt_id == attempts.c.id, telemetry_hosts.c.token == allocations.c.token),
    )
    .where(attempts.c.id == sa.bindparam("attempt"))
)
#: Both databases spell ON CONFLICT alike.
_BEGIN = (
    postgresql.insert(telemetry_hosts)
    .values({column.name: sa.bindparam(column.name, type_=column.type) for column in telemetry_hosts.c})
    .on_conflict_do_nothing()
    .returning(telemetry_hosts.c.commits)
)
_CONTINUE = (
    telemetry_hosts.update()
    .where(*(telemetry_hosts.c[name] == sa.bindparam(f"of_{name}") for name in TelemetryKey._fields))
    .where(telemetry_hosts.c.commits == sa.bindparam("known"))
    .values(
        {
            name: sa.bindparam(name, type_=telemetry_hosts.c[name].type)
            for name in ("commits", "positions", "gaps", "first_s", "last_s", "utilization", "updated_at")
        }
    )
    .returning(telemetry_hosts.c.commits)
)
