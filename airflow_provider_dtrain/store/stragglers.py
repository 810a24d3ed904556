"""Slow ranks that followers have named."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.series.slow_causes import SlowCause, straggler_text
from airflow_provider_dtrain.core.series.stragglers import Changes, Straggler
from airflow_provider_dtrain.resources.telemetry import NamedStraggler
from airflow_provider_dtrain.store.database.tables import attempts, stragglers
from airflow_provider_dtrain.store.database.transactions import Database, check_watch, reads, writes

#: Rows of one attempt. Later ones are left out: a gang whose ranks are slow by turns has said enough.
MOST_ROWS = 200
#: Time for which the count of a host has its slow ranks.
COUNTED_FOR = timedelta(days=7)


class Stragglers:
    """Slow ranks of attempts, each with its cause."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def current(self, conn: Connection, attempt_id: int) -> dict[int, SlowCause]:
        """Return the ranks of an attempt that are named and not as fast as the other ranks again, with their cause."""
        query = sa.select(stragglers.c.rank, stragglers.c.cause)
        rows = conn.execute(query.where(stragglers.c.attempt_id == attempt_id, stragglers.c.until.is_(None)))
        return {row.rank: SlowCause(row.cause) for row in rows}

    @writes
    def record(self, conn: Connection, attempt_id: int, watch: int, changes: Changes) -> None:
        """Record which ranks are slow now, which have another cause, and which are no longer slow.

        :raises StaleWatchError: the watch is not current
        """
        check_watch(conn, attempt_id, watch)
        now = self.db.now()
        for rank, at_s in changes.ended.items():
            self._update(conn, attempt_id, rank, {"until": min(now, datetime.fromtimestamp(at_s, UTC))})
        for one in changes.changed:
            self._update(conn, attempt_id, one.rank, _values(one))
        count = sa.select(sa.func.count()).select_from(stragglers).where(stragglers.c.attempt_id == attempt_id)
        room = max(0, MOST_ROWS - int(conn.scalar(count) or 0)) if changes.named else 0
        rows = [
            {"attempt_id": attempt_id, "rank": one.rank, "since": _since(one, now), "named_at": now, **_values(one)}
            for one in changes.named[:room]
        ]
        if rows:
            conn.execute(stragglers.insert(), rows)

    @staticmethod
    def _update(conn: Connection, attempt_id: int, rank: int, values: Mapping[str, object]) -> None:
        of = (stragglers.c.attempt_id == attempt_id, stragglers.c.rank == rank, stragglers.c.until.is_(None))
        conn.execute(stragglers.update().where(*of).values(**values))

    @reads
    def of_trial(self, conn: Connection, trial_id: int, attempt: int | None = None) -> list[NamedStraggler]:
        """Return the slow ranks of a trial, oldest first. One that was slow until the end has the end of its attempt.

        :param attempt: number of one attempt; None = all
        """
        return find_stragglers(conn, trial_id, attempt)


def find_stragglers(conn: Connection, trial_id: int, attempt: int | None = None) -> list[NamedStraggler]:
    """Return the slow ranks of a trial, oldest first.

    :param attempt: number of one attempt; None = all
    """
    query = (
        sa.select(stragglers, attempts.c.number, attempts.c.ended_at)
        .join(attempts, attempts.c.id == stragglers.c.attempt_id)
        .where(attempts.c.trial_id == trial_id)
        .order_by(stragglers.c.id)
    )
    rows = conn.execute(query if attempt is None else query.where(attempts.c.number == attempt)).all()
    return [
        NamedStraggler(
            attempt=row.number,
            rank=row.rank,
            host=row.host,
            since=row.since,
            until=row.until or row.ended_at,
            ratio=row.ratio,
            cost=row.cost,
            cause=SlowCause(row.cause),
            text=straggler_text(row.rank, row.host, row.ratio, row.cost, row.text),
            advice=row.advice,
        )
        for row in rows
    ]


def counts_by_host(conn: Connection, now: datetime) -> dict[str, int]:
    """Return the number of slow ranks that were named on each host lately."""
    query = sa.select(stragglers.c.host, sa.func.count()).where(stragglers.c.named_at > now - COUNTED_FOR)
    return {row[0]: int(row[1]) for row in conn.execute(query.group_by(stragglers.c.host))}


def _since(one: Straggler, now: datetime) -> datetime:
    return min(now, datetime.fromtimestamp(one.since_s, UTC))


def _values(one: Straggler) -> dict[str, object]:
    return {
        "host": one.host,
        "ratio": one.ratio,
        "cost": one.cost,
        "cause": str(one.finding.cause),
        "text": one.finding.text,
        "advice": one.finding.advice,
    }
