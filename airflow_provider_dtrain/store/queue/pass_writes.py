"""SQL statements of a scheduling pass: its lock, its grants and its other writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.external_jobs import OWN_BACKEND
from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.scheduling.decision import PassDecision
from airflow_provider_dtrain.core.scheduling.model import Placement, PoolOptions
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.connections import UtcDateTime
from airflow_provider_dtrain.store.database.statements import ByDialect, Orders
from airflow_provider_dtrain.store.database.tables import allocation_slots, allocations, counters, pools
from airflow_provider_dtrain.store.queue.accounting import NOTHING_KEPT, waited_s
from airflow_provider_dtrain.store.queue.pass_notes import NOTES, EndedReasons
from airflow_provider_dtrain.store.queue.pass_snapshot import EntryRow, Situation
from airflow_provider_dtrain.store.timeline.notes import ENTER_WAIT

_POOL: sa.BindParameter[str] = sa.bindparam("pool_name")
_POOL_NAME: sa.BindParameter[str] = sa.bindparam("pool_name", type_=sa.Text)
POOL_STATE = sa.select(
    pools.c.version, pools.c.passed_version, pools.c.next_due_at, pools.c.waiting, pools.c.backend
).where(pools.c.name == _POOL)
_IS_DUE = sa.and_(
    pools.c.backend == OWN_BACKEND,
    sa.or_(pools.c.version != pools.c.passed_version, pools.c.next_due_at <= sa.bindparam("now")),
)
_LOCKED = sa.select(
    *(pools.c[field.name] for field in fields(PoolOptions)), pools.c.waiting, _IS_DUE.label("is_due")
).where(pools.c.name == _POOL)
#: Lock of a pass, over all processes. It is not the lock of the pool's row: a process that waits for another one's pass
#: must not queue for that row, because it would delay the writers behind it.
_PASS_LOCK = sa.func.hashtextextended(sa.func.concat(sa.func.current_schema(), " dtrain ", _POOL_NAME), 0)
_IS_ALONE = sa.func.pg_try_advisory_xact_lock(_PASS_LOCK)
#: One statement that is its own transaction, so the server releases the lock at once.
AWAIT_PASS = sa.select(sa.func.pg_advisory_xact_lock_shared(_PASS_LOCK))
#: The locked pool, without a row while another process runs a pass.
LOCK_FOR_PASS = ByDialect(_LOCKED, _LOCKED.where(_IS_ALONE).with_for_update())
GRANT = (
    allocations.update()
    .where(allocations.c.id == sa.bindparam("of"))
    .values(
        state="granted",
        token=sa.bindparam("new_token"),
        granted_at=sa.bindparam("now"),
        reason="",
        reason_since_s=None,
        reason_entries=0,
        unplaceable=False,
        never_fits=False,
        waited_s=sa.bindparam("waited"),
        eligible_since=None,
        position=None,
        **NOTHING_KEPT,
    )
)
GRANT_AT_ONCE = sa.text("""
        WITH base AS (
            UPDATE counters SET value = value + :n WHERE name = 'token' RETURNING value - :n AS token
        ), granted AS (
            UPDATE allocations AS a
            SET state = 'granted', token = base.token + g.number, granted_at = :now, reason = '', reason_since_s = NULL,
                reason_entries = 0, unplaceable = false, never_fits = false,
                waited_s = g.waited, eligible_since = NULL, position = NULL, claim = NULL, reserved_hosts = NULL,
                expected = '', expected_at = NULL
            FROM base, jsonb_to_recordset(:given) AS g("of" bigint, number bigint, waited double precision)
            WHERE a.id = g."of"
        )
        INSERT INTO allocation_slots (allocation_id, token, host, slot)
        SELECT p.new_allocation_id, base.token + p.new_token, p.new_host, p.new_slot
        FROM base, jsonb_to_recordset(:places)
            AS p(new_allocation_id bigint, new_token bigint, new_host text, new_slot int)
    """).bindparams(
    sa.bindparam("n", type_=sa.BigInteger),
    sa.bindparam("now", type_=UtcDateTime),
    sa.bindparam("given", type_=postgresql.JSONB),
    sa.bindparam("places", type_=postgresql.JSONB),
)
PLACE = allocation_slots.insert().values(
    {name: sa.bindparam(f"new_{name}") for name in ("allocation_id", "token", "host", "slot")}
)
PREEMPT = (
    allocations.update()
    .where(allocations.c.id == sa.bindparam("of"))
    .values(preempted_at=sa.bindparam("now"), preempted_for=sa.bindparam("for_whom"))
)
NOTE = (
    allocations.update()
    .where(allocations.c.id == sa.bindparam("of"))
    .values({name: sa.bindparam(f"new_{name}") for name in NOTES})
)
#: Begins the timeline's entry of a request's next reason.
BEGIN_REASON = (
    allocations.update()
    .where(allocations.c.id == sa.bindparam("of"))
    .values(reason_since_s=sa.bindparam("now_s"), reason_entries=allocations.c.reason_entries + 1)
)
_NOTES: Any = (
    sa.func.jsonb_to_recordset(sa.bindparam("given", type_=postgresql.JSONB))
    .table_valued(
        sa.column("of", sa.BigInteger), *(sa.column(f"new_{name}", allocations.c[name].type) for name in NOTES)
    )
    .render_derived(with_types=True)
)
#: One statement for all requests: with one per request, the server would plan a thousand of them.
NOTE_AT_ONCE = (
    allocations.update()
    .where(allocations.c.id == _NOTES.c.of)
    .values({name: _NOTES.c[f"new_{name}"] for name in NOTES})
)
PASSED = (
    pools.update()
    .where(pools.c.name == _POOL)
    .values(passed_version=pools.c.version, next_due_at=sa.bindparam("due"), waiting=sa.bindparam("left"))
)


def grants(conn: Connection, found: Situation, decision: PassDecision) -> Orders:
    """Return the statements that write the grants of a pass, each with a new token."""
    given = [(int(request_id), placement) for request_id, placement in decision.grants]
    if not given:
        return []
    states.check("allocation", "waiting", "granted")
    waiting = {entry.id: entry for entry in found.waiting}
    # On PostgreSQL the statement itself raises the counter, which saves a round trip.
    is_one = conn.dialect.name == "postgresql"
    first = 1 if is_one else raise_token(conn, len(given)) - len(given) + 1
    rows = [
        {"of": of, "new_token": first + number, "waited": waited_s(waiting[of], found.now), "now": found.now}
        for number, (of, _) in enumerate(given)
    ]
    places = [
        {"new_allocation_id": allocation_id, "new_token": first + number, "new_host": host, "new_slot": slot}
        for number, (allocation_id, placement) in enumerate(given)
        for host, slot in _places(placement)
    ]
    if is_one:
        numbered = [{"of": row["of"], "number": row["new_token"], "waited": row["waited"]} for row in rows]
        return [(GRANT_AT_ONCE, [{"given": numbered, "places": places, "n": len(rows), "now": found.now}])]
    return [(GRANT, rows), (PLACE, places)]


def ended(reasons: EndedReasons, now: datetime) -> Orders:
    """Return the statements that enter ended reasons into timelines. They must precede those that replace reasons."""
    entered = [{"of": entry.id, "since": _since(entry), "now": now} for entry in (*reasons.granted, *reasons.replaced)]
    begun = [{"of": entry.id, "now_s": now.timestamp()} for entry in reasons.replaced]
    return [(ENTER_WAIT, entered), (BEGIN_REASON, begun)]


def _since(entry: EntryRow) -> datetime | None:
    return None if entry.reason_since_s is None else datetime.fromtimestamp(entry.reason_since_s, UTC)


def noted(conn: Connection, rows: Sequence[Mapping[str, Any]]) -> Orders:
    """Return the statements that write :func:`pass_notes.notes`."""
    if conn.dialect.name != "postgresql" or not rows:
        return [(NOTE, rows)]
    times = ("new_expected_at", "new_eligible_since")
    given = [{**row, **{name: row[name] and row[name].isoformat() for name in times}} for row in rows]
    return [(NOTE_AT_ONCE, [{"given": given}])]


def _places(placement: Placement) -> list[tuple[str, int]]:
    return [(host, slot) for host, indices in placement.slots.items() for slot in (indices or (-1,))]


def raise_token(conn: Connection, by: int) -> int:
    """Raise the token counter and return it."""
    return int(statements.read(conn, (_TOKEN,), {"by": by})[0][0].value)


_TOKEN = (
    counters.update()
    .where(counters.c.name == "token")
    .values(value=counters.c.value + sa.bindparam("by"))
    .returning(counters.c.value)
)
