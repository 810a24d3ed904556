"""Slots that gangs have held, for reports of their use."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.slot_hours import DAY_S
from airflow_provider_dtrain.store.database.connections import UtcDateTime
from airflow_provider_dtrain.store.database.seconds import seconds_since
from airflow_provider_dtrain.store.database.tables import allocations, experiments, gangs, submissions, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.records.usage import HeldSlots

_DAG_ID = sa.func.coalesce(trials.c.dag_id, gangs.c.dag_id)
_RUN_ID = sa.func.coalesce(trials.c.run_id, gangs.c.run_id)
_USER = sa.func.coalesce(sa.func.nullif(experiments.c.owner, ""), submissions.c.user_id)
_GRANTS = (
    allocations.outerjoin(trials, trials.c.id == allocations.c.trial_id)
    .outerjoin(experiments, experiments.c.id == trials.c.experiment_id)
    .outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
    .outerjoin(submissions, sa.and_(submissions.c.dag_id == _DAG_ID, submissions.c.run_id == _RUN_ID))
)


class UsageRecords:
    """Grants of slots with the DAG and the user that they were for."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def held(self, conn: Connection, since: datetime, pool: str | None = None) -> list[HeldSlots]:
        """Return the slots that gangs have held after a time, added up by the database.

        :param since: begin of a day in UTC
        :param pool: only this pool; None = all
        """
        is_postgresql = conn.dialect.name == "postgresql"
        # A released gang has ended. One that still holds its slots, whatever its attempt says, holds them until now.
        until = sa.func.coalesce(allocations.c.ended_at, sa.literal(self.db.now(), UtcDateTime()))
        end_s = seconds_since(since, until, is_postgresql=is_postgresql)
        begin_s = seconds_since(since, allocations.c.granted_at, is_postgresql=is_postgresql)
        begin_s = sa.case((allocations.c.granted_at < since, 0.0), else_=begin_s)
        days = [_whole(seconds / DAY_S, is_postgresql) for seconds in (begin_s, end_s)]
        slots = allocations.c.slots
        sums = [sa.func.sum(figure) for figure in (slots, slots * begin_s, slots * end_s)]
        names = [allocations.c.pool, _DAG_ID, _USER, *days]
        columns = [column.label(f"c{place}") for place, column in enumerate([*names, *sums])]
        query = sa.select(*columns).select_from(_GRANTS).group_by(*columns[: len(names)])
        # The clock of the store may have been set back.
        query = query.where(slots > 0, until > since, until > allocations.c.granted_at)
        query = query.where(*([] if pool is None else [allocations.c.pool == pool]))
        return [
            HeldSlots(
                pool=of_pool,
                dag_id=dag_id,
                user=user,
                first=int(first),
                last=int(last),
                slots=int(held),
                since_s=float(since_s),
                until_s=float(until_s),
            )
            for of_pool, dag_id, user, first, last, held, since_s, until_s in conn.execute(query)
        ]


def _whole(figure: sa.ColumnElement[Any], is_postgresql: bool) -> sa.ColumnElement[Any]:
    """Return the whole part of a figure of 0 and more. A cast of PostgreSQL rounds, and SQLite may have no floor()."""
    return sa.func.floor(figure) if is_postgresql else sa.cast(figure, sa.Integer)
