"""Return of trials to the queue: a new request in the old place, and hosts that they must not use again."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import AttemptState
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.core.lifecycle.timing import EXCLUDED_FOR
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import AllocationRow, AttemptRow
from airflow_provider_dtrain.store.database.tables import allocations, attempts, ranks, trials
from airflow_provider_dtrain.store.database.transactions import bump
from airflow_provider_dtrain.store.queue.accounting import KEPT_BY_REQUESTS, held_s, paused_by, waited_s
from airflow_provider_dtrain.store.queue.transitions import set_attempt, set_trial
from airflow_provider_dtrain.store.timeline.notes import note

_TRIAL = sa.select(trials).where(trials.c.id == sa.bindparam("trial"))
_FORGET_RANKS = ranks.delete().where(ranks.c.attempt_id == sa.bindparam("attempt"))


def wait_again(conn: Connection, now: datetime, attempt: AttemptRow, row: AllocationRow, reason: str) -> None:
    """Give an attempt whose gang is released a new request in the old place."""
    note(conn, attempt.trial_id, TimelineKind.RETURNED, now, attempt_id=attempt.id, message=reason)
    set_waiting(conn, attempt, reason)
    new = request_again(conn, now, row, reason)
    statements.update(conn, attempts, attempt.id, allocation_id=new)


def set_waiting(conn: Connection, attempt: AttemptRow, reason: str) -> None:
    """Set an attempt to waiting, without the plan and the ranks of its last launch."""
    set_attempt(conn, attempt, AttemptState.WAITING, plan=None, master=None, reason=reason, started_at=None)
    conn.execute(_FORGET_RANKS, {"attempt": attempt.id})


def exclude(
    conn: Connection, now: datetime, attempt: AttemptRow, host: str | None, why: str, at_least: timedelta | None = None
) -> None:
    """Exclude a host for the trial of an attempt from now on.

    :param why: in words
    :param at_least: time for which this holds even if no other host could serve it; None = ``EXCLUDED_FOR``
    """
    if host is None:
        return
    own = trials.c.id == attempt.trial_id
    old = conn.scalar(sa.select(trials.c.excluded).where(own)) or []
    new = {"host": host, "until_s": (now + (at_least or EXCLUDED_FOR)).timestamp()}
    excluded = [entry for entry in old if entry["host"] != host] + [new]
    conn.execute(trials.update().where(own).values(excluded=excluded))
    kind = TimelineKind.HOST_EXCLUDED
    note(conn, attempt.trial_id, kind, now, attempt_id=attempt.id, host=host, message=why)


def request_again(
    conn: Connection, now: datetime, row: AllocationRow, reason: str, *, held_until: datetime | None = None
) -> int:
    """Create a waiting request with place and counters of an older one, and return its id.

    The trial is queued again, or paused if a user has requested that.

    :param held_until: time at which the older one's gang ended; None = now
    """
    until = min(moment for moment in (held_until, row.ended_at, now) if moment is not None)
    trial = statements.first(conn, _TRIAL, {"trial": row.trial_id})
    is_paused = trial.pause_requested_at is not None
    values = {name: getattr(row, name) for name in KEPT_BY_REQUESTS}
    if trial.state != "queued":
        set_trial(conn, trial.id, "queued", ended_at=None, failure=None, result=None)
    if is_paused:
        set_trial(conn, trial.id, "paused")
    bump(conn, row.pool)
    return statements.insert(
        conn,
        allocations,
        **values,
        state="waiting",
        requested_at=now,
        renewed_at=now,
        reason=paused_by(conn, trial) if is_paused else reason,
        held_s=held_s(row, until),
        waited_s=waited_s(row, until) + (row.cost_s or 0.0 if row.preempted_at is not None else 0.0),
        paused=is_paused,
        eligible_since=None if is_paused else now,
    )
