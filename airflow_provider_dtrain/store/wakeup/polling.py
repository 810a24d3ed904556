"""Polling queries for waiters: few, small, and the same for all waiters of a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.statements import ByDialect
from airflow_provider_dtrain.store.database.tables import allocations, pools, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads

Sign = tuple[Any, ...]

_PASSES = sa.select(pools.c.name, pools.c.version, pools.c.passed_version)
_DUE = sa.select(pools.c.name).where(
    sa.or_(pools.c.version != pools.c.passed_version, pools.c.next_due_at <= sa.bindparam("now"))
)
_GRANTED = sa.select(allocations.c.id).join(
    pools, sa.and_(pools.c.name == allocations.c.pool, allocations.c.state == sa.literal_column("'granted'"))
)
_SIGNS_OF = sa.select(
    allocations.c.id,
    allocations.c.state,
    allocations.c.unplaceable,
    allocations.c.paused,
    trials.c.kill_requested_at,
    trials.c.pause_requested_at,
).outerjoin(trials, trials.c.id == allocations.c.trial_id)
_LISTED: Any = sa.func.json_each(sa.bindparam("ids", type_=sa.JSON)).table_valued("value")
#: One statement for any number of ids, so that it is compiled once.
_SIGNS = ByDialect(
    _SIGNS_OF.where(allocations.c.id.in_(sa.select(_LISTED.c.value))),
    _SIGNS_OF.where(allocations.c.id == sa.any_(sa.bindparam("ids", type_=postgresql.ARRAY(sa.BigInteger)))),
)


class Polling:
    """Polling queries for all waiters of a process."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def passes(self, conn: Connection) -> set[tuple[Any, ...]]:
        """Return the versions of all pools, which change with each pool change and each pass."""
        return {tuple(row) for row in statements.rows(conn, _PASSES, {})}

    @reads
    def due_pools(self, conn: Connection, names: Sequence[str]) -> list[str]:
        """Return the given pools in which a pass is due."""
        due = {row.name for row in statements.rows(conn, _DUE, {"now": self.db.now()})}
        return [name for name in names if name in due]

    @reads
    def due_and_granted(self, conn: Connection) -> tuple[set[str], set[int]]:
        """Return the pools in which a pass is due, and the grants that are not taken up yet."""
        due, granted = statements.read(conn, (_DUE, _GRANTED), {"now": self.db.now()})
        return {row.name for row in due}, {row.id for row in granted}

    @reads
    def request_signs(self, conn: Connection, allocation_ids: Sequence[int]) -> dict[int, Sign]:
        """Return per request the values whose change must wake its waiter."""
        return {entry[0]: tuple(entry[1:]) for entry in statements.rows(conn, _SIGNS, {"ids": list(allocation_ids)})}
