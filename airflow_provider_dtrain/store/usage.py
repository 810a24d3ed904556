"""Slots that gangs have held, for reports of their use."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database.tables import allocations, experiments, gangs, submissions, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.records.usage import HeldSlots

_DAG_ID = sa.func.coalesce(trials.c.dag_id, gangs.c.dag_id)
_RUN_ID = sa.func.coalesce(trials.c.run_id, gangs.c.run_id)
#: A released gang has ended. One that still holds its slots, whatever its attempt says, holds them until now.
_HELD = (
    sa.select(
        allocations.c.pool,
        allocations.c.slots,
        allocations.c.granted_at.label("since"),
        allocations.c.ended_at.label("until"),
        _DAG_ID.label("dag_id"),
        sa.func.coalesce(sa.func.nullif(experiments.c.owner, ""), submissions.c.user_id).label("user"),
    )
    .select_from(allocations)
    .outerjoin(trials, trials.c.id == allocations.c.trial_id)
    .outerjoin(experiments, experiments.c.id == trials.c.experiment_id)
    .outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
    .outerjoin(submissions, sa.and_(submissions.c.dag_id == _DAG_ID, submissions.c.run_id == _RUN_ID))
    .where(allocations.c.granted_at.is_not(None), allocations.c.slots > 0)
)


class UsageRecords:
    """Grants of slots with the DAG and the user that they were for."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def held(self, conn: Connection, since: datetime, pool: str | None = None) -> list[HeldSlots]:
        """Return the slots that gangs have held after a time.

        :param pool: only this pool; None = all
        """
        is_after = sa.or_(allocations.c.ended_at.is_(None), allocations.c.ended_at > since)
        query = _HELD.where(is_after, *([] if pool is None else [allocations.c.pool == pool]))
        return [
            HeldSlots(pool=of_pool, slots=slots, since=granted, until=until, dag_id=dag_id, user=user)
            for of_pool, slots, granted, until, dag_id, user in conn.execute(query)
        ]
