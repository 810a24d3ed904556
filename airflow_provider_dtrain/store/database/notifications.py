"""PostgreSQL notifications for waiters: a pool has changed, a gang was granted.

A message is sent by the transaction that makes the change, so a rollback sends none. It only says what to query:
a lost message, for instance behind pgbouncer, costs time and nothing else. ``store.wakeup`` receives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

CHANNEL = "dtrain"
#: Most bytes of ids in one message; PostgreSQL accepts 8,000 bytes.
MESSAGE_BYTES = 7000


@dataclass(frozen=True, kw_only=True)
class PoolChange:
    """A change that another transaction made to a pool."""

    pool: str
    #: Allocations that were granted; empty: any change that may affect the next decision.
    granted: frozenset[int] = frozenset()


def granted_messages(pool: str, allocation_ids: Sequence[int]) -> list[dict[str, str]]:
    """Return the parameters of :data:`NOTIFY` that notify the waiters for these allocations."""
    return [{"message": f" granted {pool} {piece}"} for piece in _pieces([str(one) for one in allocation_ids])]


#: Sends ``message`` when the transaction commits.
NOTIFY = sa.select(
    sa.func.pg_notify(CHANNEL, sa.func.concat(sa.func.current_schema(), sa.bindparam("message", type_=sa.Text)))
)


#: RETURNING clause for an UPDATE of a pool's version, so that the notification costs no statement of its own.
POOL_CHANGED: sa.ColumnElement[Any] = sa.func.pg_notify(
    CHANNEL, sa.func.concat(sa.func.current_schema(), " changed ", sa.bindparam("pool_name", type_=sa.Text))
)


def message(kind: str, content: str) -> sa.ColumnElement[Any]:
    """Return the call that sends a message of another kind."""
    # Stores may share a database. Each has its own schema, but channels belong to the whole database.
    return sa.func.pg_notify(CHANNEL, sa.func.concat(sa.func.current_schema(), f" {kind} {content}"))


def _pieces(ids: Sequence[str]) -> Iterator[str]:
    most = MESSAGE_BYTES // 20
    for start in range(0, len(ids), most):
        yield ",".join(ids[start : start + most])


def parsed(payload: str, schema: str) -> PoolChange | None:
    """Return the parsed message, None when it is of another store or of an unknown kind."""
    home, _, rest = payload.partition(" ")
    match rest.split(" "):
        case ["changed", pool]:
            return PoolChange(pool=pool) if home == schema else None
        case ["granted", pool, ids] if home == schema and all(one.isdigit() for one in ids.split(",")):
            return PoolChange(pool=pool, granted=frozenset(map(int, ids.split(","))))
    return None
