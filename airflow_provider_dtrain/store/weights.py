"""Digests of weights that trials recorded. They are events, which garbage collection keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.event_log import WEIGHTS
from airflow_provider_dtrain.core.lifecycle.weight_comparison import WeightRecord
from airflow_provider_dtrain.store.database.tables import attempts, events
from airflow_provider_dtrain.store.database.transactions import Database, reads

#: Most records of one trial that are read, the first ones. Ranks may write as many as the limit of events allows.
RECORDS_MOST = 100_000


class Weights:
    """Digests of the weights of trials over all their attempts."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def of_trial(self, conn: Connection, trial_id: int) -> list[WeightRecord]:
        """Return the digests that the ranks of a trial recorded, in the order of their arrival."""
        # As texts, because a step may exceed the integers of a database.
        body = {name: events.c.body[name].as_string().label(name) for name in ("step", "digest")}
        query = (
            sa.select(events.c.id, events.c.kind, events.c.stream, attempts.c.number, *body.values())
            .join(attempts, attempts.c.id == events.c.attempt_id)
            .where(attempts.c.trial_id == trial_id, events.c.kind.in_(WEIGHTS))
            .order_by(events.c.id)
            .limit(RECORDS_MOST)
        )
        return [
            WeightRecord(
                event_id=row.id,
                kind=row.kind,
                attempt=row.number,
                # rank<k>.events
                rank=int(row.stream.removeprefix("rank").partition(".")[0]),
                step=int(row.step),
                digest=row.digest,
            )
            for row in conn.execute(query)
        ]

    @reads
    def latest(self, conn: Connection, trial_ids: Collection[int]) -> dict[int, int]:
        """Return the id of the latest record of each trial that has one. It costs no reading of bodies."""
        query = (
            sa.select(attempts.c.trial_id, sa.func.max(events.c.id).label("latest"))
            .join(events, events.c.attempt_id == attempts.c.id)
            .where(attempts.c.trial_id.in_(list(trial_ids)), events.c.kind.in_(WEIGHTS))
            .group_by(attempts.c.trial_id)
        )
        return {row.trial_id: row.latest for row in conn.execute(query)}

    @reads
    def bodies(self, conn: Connection, event_ids: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        """Return the bodies of records by the ids of their events."""
        query = sa.select(events.c.id, events.c.body).where(events.c.id.in_(list(event_ids)))
        return {row.id: row.body for row in conn.execute(query)}
