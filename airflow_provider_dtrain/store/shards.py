"""Shards of batch inferences, from the events of their ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.shard_blame import DONE, SHARD_KINDS
from airflow_provider_dtrain.store.database.tables import events
from airflow_provider_dtrain.store.database.transactions import Database, reads

#: Latest events of a rank that are read: it works on few shards at a time.
LATEST_EVENTS = 1000


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
