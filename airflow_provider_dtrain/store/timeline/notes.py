"""Facts about trials that no other row keeps, written in the transaction of the fact.

A trial has a bounded number of these rows, whatever repeats for weeks: a repetition of the latest fact is merged into
its row, and above :data:`MOST_NOTES` a new row replaces one of the middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind, one_line
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.connections import UtcDateTime
from airflow_provider_dtrain.store.database.rows import AllocationRow
from airflow_provider_dtrain.store.database.tables import allocations, timeline, trials

#: Rows of one trial. The first half of them is never removed.
MOST_NOTES = 400

_OF_TRIAL = timeline.c.trial_id == sa.bindparam("trial")
_LATEST = sa.select(timeline).where(_OF_TRIAL).order_by(timeline.c.id.desc()).limit(1)
_MIDDLE = sa.select(timeline.c.id).where(_OF_TRIAL).order_by(timeline.c.id).limit(1).offset(MOST_NOTES // 2)
_COUNT = sa.select(sa.func.count().label("all")).select_from(timeline).where(_OF_TRIAL)
_OF_ATTEMPT = sa.select(timeline.c.id).where(
    _OF_TRIAL, timeline.c.attempt_id == sa.bindparam("attempt"), timeline.c.kind == sa.bindparam("of_kind")
)
#: Builds of environments that an attempt waits for.
_BUILDS = (
    sa.select(timeline)
    .where(
        _OF_TRIAL,
        timeline.c.attempt_id == sa.bindparam("attempt"),
        timeline.c.kind == sa.bindparam("of_kind"),
        timeline.c.value.is_(None),
    )
    .order_by(timeline.c.id)
)
_SINCE: sa.BindParameter[datetime] = sa.bindparam("since", type_=UtcDateTime())
#: Enters the reason of a waiting request, which must still be in its row. ``since`` None: since the request.
ENTER_WAIT = timeline.insert().from_select(
    ["trial_id", "kind", "at", "until", "words"],
    sa.select(
        allocations.c.trial_id,
        sa.literal(TimelineKind.WAITED.value),
        sa.func.coalesce(_SINCE, allocations.c.requested_at),
        sa.bindparam("now", type_=UtcDateTime()),
        allocations.c.reason,
    ).where(allocations.c.id == sa.bindparam("of")),
)


def note(
    conn: Connection,
    trial_id: int,
    kind: TimelineKind,
    at: datetime,
    *,
    attempt_id: int | None = None,
    until: datetime | None = None,
    host: str | None = None,
    by: str | None = None,
    message: str = "",
    value: int | None = None,
) -> None:
    """Add a fact to the timeline of a trial, or merge it into the latest fact if that is the same.

    :param by: the user
    :param value: a number that the kind explains
    """
    of = {"trial": trial_id}
    same = {
        "kind": kind.value,
        "attempt_id": attempt_id,
        "host": host,
        "by": by,
        "words": one_line(message),
        "value": value,
    }
    latest = statements.first(conn, _LATEST, of)
    if latest is not None and until is None and all(getattr(latest, name) == same[name] for name in same):
        statements.update(conn, timeline, latest.id, until=at, merged=latest.merged + 1)
        return
    if statements.first(conn, _COUNT, of).all >= MOST_NOTES:
        middle = statements.first(conn, _MIDDLE, of)
        conn.execute(timeline.delete().where(timeline.c.id == middle.id))
    statements.insert(conn, timeline, trial_id=trial_id, at=at, until=until, **same)


def note_once(
    conn: Connection,
    trial_id: int,
    kind: TimelineKind,
    at: datetime,
    *,
    attempt_id: int,
    host: str,
    message: str = "",
) -> None:
    """Add a fact to the timeline of a trial, unless the attempt has one of this kind."""
    of = {"trial": trial_id, "attempt": attempt_id, "of_kind": kind.value}
    if statements.first(conn, _OF_ATTEMPT, of) is None:
        note(conn, trial_id, kind, at, attempt_id=attempt_id, host=host, message=message)


def set_note_value(conn: Connection, trial_id: int, kind: TimelineKind, attempt_id: int, value: int | None) -> None:
    """Set the number of an attempt's fact, if the attempt has one of this kind."""
    of = {"trial": trial_id, "attempt": attempt_id, "of_kind": kind.value}
    if (row := statements.first(conn, _OF_ATTEMPT, of)) is not None:
        statements.update(conn, timeline, row.id, value=value)


def note_build(
    conn: Connection,
    now: datetime,
    trial_id: int,
    attempt_id: int,
    host: str,
    message: str,
    *,
    is_ready: bool | None,
) -> list[tuple[str, str]]:
    """Enter the build of an environment on a host, which an attempt waits for.

    :param is_ready: True or False: it has succeeded or failed; None: it goes on
    :return: the hosts that still build, with their progress
    """
    of = {"trial": trial_id, "attempt": attempt_id, "of_kind": TimelineKind.ENVIRONMENT.value}
    builds = statements.rows(conn, _BUILDS, of)
    row = next((one for one in builds if one.host == host), None)
    if row is None:
        note(conn, trial_id, TimelineKind.ENVIRONMENT, now, attempt_id=attempt_id, host=host, message=message)
    else:
        end: dict[str, Any] = {} if is_ready is None else {"until": now, "value": int(is_ready)}
        statements.update(conn, timeline, row.id, words=one_line(message), **end)
    return [(one.host, one.words) for one in statements.rows(conn, _BUILDS, of)]


def note_all(
    conn: Connection, of_trials: sa.ColumnElement[bool], kind: TimelineKind, at: datetime, *, by: str, value: int
) -> None:
    """Add the request of a user to the timelines of many trials with one statement."""
    values: Mapping[str, Any] = {"kind": kind.value, "at": at, "by": by, "value": value, "words": ""}
    literals = [sa.literal(given, timeline.c[name].type) for name, given in values.items()]
    query = sa.select(trials.c.id, *literals).where(of_trials).order_by(trials.c.id)
    conn.execute(timeline.insert().from_select(["trial_id", *values], query))


def enter_wait(conn: Connection, row: AllocationRow, now: datetime) -> None:
    """Enter the reason of a request that stops waiting outside a scheduling pass.

    :param row: as it still is
    """
    if row.reason and row.trial_id is not None:
        since = None if row.reason_since_s is None else datetime.fromtimestamp(row.reason_since_s, UTC)
        statements.execute(conn, ENTER_WAIT, {"of": row.id, "since": since, "now": now})
