"""Shards of batch inferences, from the events of their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.inference_progress import ShardCounts, ShardReport
from airflow_provider_dtrain.core.lifecycle.shard_blame import DONE, FAILED, SHARD_KINDS, SKIPPED
from airflow_provider_dtrain.store.database.tables import attempts, events
from airflow_provider_dtrain.store.database.transactions import Database, reads

#: Latest events of a rank that are read: it works on few shards at a time.
LATEST_EVENTS = 1000
#: Kind of the event with the number of shards, and of the last event.
SHARDS, MANIFEST, PREVIEW = "shards", "manifest", "results_preview"
_COUNTED = (*SHARD_KINDS, MANIFEST)


class Shards:
    """Reports of the ranks of batch inferences about their shards."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def of_rank(self, conn: Connection, attempt_id: int, rank: int) -> list[Mapping[str, Any]]:
        """Return a rank's latest events about shards, in order."""
        of = events.c
        query = (
            sa.select(of.body)
            .where(of.attempt_id == attempt_id, of.kind.in_(SHARD_KINDS), of.stream == f"rank{rank}.events")
            .order_by(of.id.desc())
            .limit(LATEST_EVENTS)
        )
        return list(reversed(conn.scalars(query).all()))

    @reads
    def finished(self, conn: Connection, attempt_id: int) -> int:
        """Return the number of shards that an attempt has finished."""
        where = (events.c.attempt_id == attempt_id, events.c.kind == DONE)
        return int(conn.scalar(sa.select(sa.func.count()).select_from(events).where(*where)) or 0)

    @reads
    def counts(self, conn: Connection, trial_ids: Sequence[int]) -> dict[int, ShardCounts]:
        """Return the counts of each trial that has shards, by two statements."""
        return shard_counts(conn, trial_ids)

    @reads
    def reports(self, conn: Connection, trial_id: int, *, is_live: bool) -> list[ShardReport]:
        """Return the reports about shards of all attempts of a trial, in order.

        :param is_live: the latest attempt is live
        """
        latest = conn.scalar(sa.select(sa.func.max(attempts.c.id)).where(attempts.c.trial_id == trial_id))
        query = (
            sa.select(events.c.attempt_id, events.c.kind, events.c.body["shard"].as_integer().label("shard"))
            .join(attempts, attempts.c.id == events.c.attempt_id)
            .where(attempts.c.trial_id == trial_id, events.c.kind.in_(SHARD_KINDS))
            .order_by(events.c.id)
        )
        return [
            ShardReport(int(row.shard), str(row.kind), is_live and row.attempt_id == latest)
            for row in conn.execute(query)
        ]

    @reads
    def preview(self, conn: Connection, trial_id: int) -> Mapping[str, Any] | None:
        """Return the first report of a trial's first results, None without one."""
        query = (
            sa.select(events.c.body)
            .join(attempts, attempts.c.id == events.c.attempt_id)
            .where(attempts.c.trial_id == trial_id, events.c.kind == PREVIEW)
            .order_by(events.c.id)
            .limit(1)
        )
        return conn.scalars(query).first()

    @reads
    def bad_rows(self, conn: Connection, trial_id: int, *, most: int) -> list[Mapping[str, Any]]:
        """Return the latest reports about finished shards with bad rows, latest first."""
        query = (
            sa.select(events.c.body)
            .join(attempts, attempts.c.id == events.c.attempt_id)
            .where(attempts.c.trial_id == trial_id, events.c.kind == DONE, events.c.body["rows_bad"].as_float() > 0)
            .order_by(events.c.id.desc())
            .limit(most)
        )
        return list(conn.scalars(query))

    @reads
    def troubles(self, conn: Connection, trial_id: int, *, most: int) -> list[Mapping[str, Any]]:
        """Return the latest reports about shards that failed or were set aside, latest first."""
        query = (
            sa.select(events.c.body)
            .join(attempts, attempts.c.id == events.c.attempt_id)
            .where(attempts.c.trial_id == trial_id, events.c.kind.in_((FAILED, SKIPPED)))
            .order_by(events.c.id.desc())
            .limit(most)
        )
        return list(conn.scalars(query))


# As floating point numbers: a sum of integers that a host chose could overflow in the database.
_ROWS = sa.func.sum(sa.case((events.c.kind == DONE, events.c.body["rows"].as_float()), else_=0.0))
_BAD_ROWS = sa.func.sum(
    sa.case((events.c.kind == DONE, sa.func.coalesce(events.c.body["rows_bad"].as_float(), 0.0)), else_=0.0)
)
_TOTALS = (
    sa.select(
        events.c.attempt_id,
        events.c.kind,
        sa.func.count().label("number"),
        _ROWS.label("rows"),
        _BAD_ROWS.label("bad_rows"),
        sa.func.min(events.c.at).label("first"),
        sa.func.max(events.c.at).label("last"),
    )
    .where(events.c.attempt_id.in_(sa.bindparam("attempts", expanding=True)), events.c.kind.in_(_COUNTED))
    .group_by(events.c.attempt_id, events.c.kind)
)


def shard_counts(conn: Connection, trial_ids: Sequence[int]) -> dict[int, ShardCounts]:
    """Return the counts of each trial that has shards, by two statements."""
    begun = _begun(conn, trial_ids)
    totals: dict[int, list[Any]] = {}
    for row in conn.execute(_TOTALS, {"attempts": [row.attempt_id for row in begun.values()]}) if begun else ():
        totals.setdefault(row.attempt_id, []).append(row)
    return {trial_id: _counts(row.body, totals.get(row.attempt_id, ())) for trial_id, row in begun.items()}


def _begun(conn: Connection, trial_ids: Sequence[int]) -> dict[int, Any]:
    """Return for each trial the latest event with the number of its shards."""
    query = (
        sa.select(attempts.c.trial_id, events.c.attempt_id, events.c.body)
        .join(attempts, attempts.c.id == events.c.attempt_id)
        .where(attempts.c.trial_id.in_(list(trial_ids)), events.c.kind == SHARDS)
        .order_by(events.c.id)
    )
    return {row.trial_id: row for row in conn.execute(query)}


def _counts(begun: Mapping[str, Any], totals: Iterable[Any]) -> ShardCounts:
    counts = ShardCounts(
        total=begun["total"],
        missing=begun["missing"],
        rows=begun.get("rows"),
        rows_done=begun["rows_done"],
        finished=begun.get("finished"),
        bad_rows=begun.get("rows_bad") or 0,
    )
    for row in totals:
        match row.kind:
            case "shard_done":
                last = _seconds(row.last)
                bad_rows = counts.bad_rows + int(row.bad_rows or 0)
                rows = int(row.rows or 0)
                counts = replace(counts, done=row.number, done_rows=rows, bad_rows=bad_rows, last_end_s=last)
            case "shard_started":
                counts = replace(counts, first_start_s=_seconds(row.first))
            case "shard_failed":
                counts = replace(counts, failed=row.number)
            case "shard_skipped":
                counts = replace(counts, skipped=row.number)
            case "manifest":
                counts = replace(counts, is_published=True)
    return counts


def _seconds(at: datetime) -> float:
    return at.timestamp()
