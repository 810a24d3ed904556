"""Version of the queue as pages show it, without the work of rendering a page."""

from __future__ import annotations

import hashlib
import marshal
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import ACTIVE
from airflow_provider_dtrain.core.lifecycle.timing import SILENT_AFTER
from airflow_provider_dtrain.store.database.tables import allocations, attempts, gangs, pools, trials
from airflow_provider_dtrain.store.queue.queue_rows import FROM_QUEUE, IN_QUEUE, TASK
from airflow_provider_dtrain.store.records.pages import PageVersion, page_version

_LIMIT = sa.bindparam("limit", type_=allocations.c.renewed_at.type)
_ASKED = allocations.c.renewed_at <= _LIMIT
_FOLLOWED = attempts.c.renewed_at <= _LIMIT
_WAITS = sa.or_(allocations.c.state == "waiting", attempts.c.state == "waiting")
#: The follower is gone. Its last sign of life is shown, while that of the living ones changes every few seconds.
_IS_SILENT = sa.or_(
    sa.and_(_WAITS, _ASKED, sa.or_(attempts.c.renewed_at.is_(None), _FOLLOWED)),
    sa.and_(attempts.c.state.in_(sorted(ACTIVE)), _FOLLOWED),
)


def _text(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return a time or JSON as the text of the database, which is enough to compare it: a conversion costs more."""
    return sa.cast(column, sa.Text)


def _while_silent(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.case((_IS_SILENT, _text(column)))


#: What a row shows and what its place depends on, as far as it changes: the rest follows from the ids.
_CHANGING = (
    *(allocations.c[name] for name in ("id", "state", "token", "priority", "sequence", "position")),
    *(allocations.c[name] for name in ("reason", "expected", "paused")),
    # The text of a reason depends on the trials that give way, which the claim names.
    *(_text(allocations.c[name]) for name in ("granted_at", "expected_at", "eligible_since", "claim")),
    allocations.c.preempted_for,
    attempts.c.id,
    attempts.c.state,
    attempts.c.reason,
    trials.c.is_drawn,
    trials.c.draw,
    gangs.c.attempt_id,
    _while_silent(allocations.c.renewed_at),
    _while_silent(attempts.c.renewed_at),
)
_ROWS = sa.select(TASK["dag_id"], *_CHANGING).select_from(FROM_QUEUE).where(IN_QUEUE).order_by(allocations.c.id)
#: Each change of a host, a slot or a grant raises the version of its pool.
_POOLS = sa.select(pools.c.name, pools.c.version, pools.c.passed_version).order_by(pools.c.name)


def queue_version(conn: Connection, now: datetime) -> PageVersion:
    """Return the version of the gangs that wait or hold slots, and of the counts of pools."""
    rows = [tuple(row) for row in conn.execute(_ROWS, {"limit": now - SILENT_AFTER}).all()]
    # Equal rows have equal bytes in format 2, in a tenth of the time that their texts take.
    digest = hashlib.sha256(marshal.dumps(rows, 2)).hexdigest()
    return page_version(conn.execute(_POOLS).all(), digest, dags={row[0] for row in rows})
