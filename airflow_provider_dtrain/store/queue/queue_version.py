"""Version of the queue as pages show it, without the work of rendering a page."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import ACTIVE
from airflow_provider_dtrain.core.lifecycle.timing import SILENT_AFTER
from airflow_provider_dtrain.store.database.statements import ByDialect, rows
from airflow_provider_dtrain.store.database.tables import allocations, attempts, gangs, pools, trials
from airflow_provider_dtrain.store.queue.queue_rows import IN_QUEUE, TASK
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
#: All attempts of a gang instead of the one that a row shows: ended ones do not change, and the search for the newest
#: one of each gang takes a third of the statement's time on PostgreSQL.
_FROM = (
    allocations.outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
    .outerjoin(attempts, attempts.c.allocation_id == allocations.c.id)
    .outerjoin(trials, trials.c.id == attempts.c.trial_id)
)
_IDS = (allocations.c.id, attempts.c.id)


def _per_dag(facts: sa.ColumnElement[Any]) -> sa.Select[Any]:
    return sa.select(TASK["dag_id"], facts).select_from(_FROM).where(IN_QUEUE).group_by(TASK["dag_id"])


#: The facts of all gangs of a DAG as one value. Rows take twice the time on SQLite, and nine times the CPU time of this
#: process on PostgreSQL. SQLite lists gangs in the order in which it reads them. Another order is another version, so a
#: page may be sent once more, but never too rarely.
_FACTS = ByDialect(
    sqlite=_per_dag(sa.func.json_group_array(sa.func.json_array(*_CHANGING))),
    postgresql=_per_dag(
        sa.func.md5(
            sa.func.string_agg(
                sa.cast(sa.func.row(*_CHANGING), sa.Text), postgresql.aggregate_order_by(sa.literal(""), *_IDS)
            )
        )
    ),
)
#: Each change of a host, a slot or a grant raises the version of its pool.
_POOLS = sa.select(pools.c.name, pools.c.version, pools.c.passed_version).order_by(pools.c.name)


def queue_version(conn: Connection, now: datetime) -> PageVersion:
    """Return the version of the gangs that wait or hold slots, and of the counts of pools."""
    facts = rows(conn, _FACTS, {"limit": now - SILENT_AFTER})
    digests = sorted((dag, hashlib.sha256(found.encode()).hexdigest()) for dag, found in facts)
    return page_version(conn.execute(_POOLS).all(), digests, dags={dag for dag, _ in digests})
