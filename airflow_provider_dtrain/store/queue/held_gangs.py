"""Held gangs, which outlive their attempts: one task takes a gang, later tasks use it one after the other.

The allocation of such a gang has no trial. It is ``running`` while the gang is unused, otherwise its state follows the
attempt that uses the gang.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import ALLOCATION_LIVE
from airflow_provider_dtrain.errors import ConflictError, GangEndedError, StaleWatchError
from airflow_provider_dtrain.store.database.rows import AllocationRow, AttemptRow, GangRow
from airflow_provider_dtrain.store.database.tables import allocations, attempts, gangs
from airflow_provider_dtrain.store.database.transactions import bump
from airflow_provider_dtrain.store.queue.slot_release import held_hosts, release_host, set_allocation
from airflow_provider_dtrain.store.records.trials import Proof


def trial_text(trial_id: int, experiment: str, dag_id: str, task_id: str, map_index: int) -> str:
    """Return a trial in words, with the names that Airflow's pages show."""
    mapped = f"[{map_index}]" if map_index >= 0 else ""
    return f"{dag_id}.{task_id}{mapped} (trial {trial_id} of {experiment})"


def gang_text(dag_id: str, task_id: str) -> str:
    """Return a held gang in words, with the task that it belongs to."""
    return f"gang of {dag_id}/{task_id}"


def last_users() -> sa.ColumnElement[bool]:
    """Return the condition for the attempts that may have left processes on an allocation's hosts.

    For a gang that was granted to a trial this is the newest attempt. For a held gang it is the attempt that uses it,
    because newer attempts may wait for it.
    """
    others = attempts.alias()
    newest = sa.select(sa.func.max(others.c.id)).where(others.c.allocation_id == allocations.c.id)
    users = sa.select(gangs.c.attempt_id).where(gangs.c.attempt_id.is_not(None))
    own = sa.and_(allocations.c.trial_id.is_not(None), attempts.c.id == newest.correlate(allocations).scalar_subquery())
    return sa.or_(own, attempts.c.id.in_(users))


def check_gang(row: AllocationRow, gang: GangRow, token: int | None) -> None:
    """Check that the grant of ``token`` can still be used.

    :param row: of the allocation
    :raises GangEndedError: the gang has ended, or the token is of another grant
    """
    subject = f"The {gang_text(gang.dag_id, gang.task_id)} (allocation {row.id})"
    if gang.ended_because is not None or row.state in {"released", "expired"}:
        raise GangEndedError(
            f"{subject} has ended: {gang.ended_because or 'its slots were released'}. Clear the task '{gang.task_id}': "
            "it requests another gang, and its downstream tasks run again."
        )
    if row.token != token:
        raise GangEndedError(
            f"{subject} is held under token {row.token}, not {token}: this task received an older grant. Clear the "
            f"task '{gang.task_id}' and its downstream tasks."
        )


def held_gang(conn: Connection, allocation_id: int) -> GangRow:
    """Return the locked row of a held gang, which must exist."""
    return conn.execute(sa.select(gangs).where(gangs.c.allocation_id == allocation_id).with_for_update()).one()


def set_gang(conn: Connection, allocation_id: int, **values: Any) -> None:
    """Set columns of a held gang."""
    conn.execute(gangs.update().where(gangs.c.allocation_id == allocation_id).values(**values))


def stay_with_gang(conn: Connection, now: datetime, row: AllocationRow, attempt: AttemptRow, *, keep: bool) -> str:
    """Return the state in which the trial's next attempt begins on the same held gang.

    :param keep: True: no process runs on its hosts, and the attempt had not ended before
    :raises GangEndedError: the gang has ended
    """
    gang = held_gang(conn, row.id)
    check_gang(row, gang, row.token)
    if keep and gang.attempt_id == attempt.id:
        set_allocation(conn, row.id, row.state, "starting")
        return "starting"
    leave_gang(conn, now, row, attempt.id)
    return "waiting"


def pass_gang_on(conn: Connection, row: AllocationRow, attempt_id: int, next_id: int) -> None:
    """Make the trial's next attempt the user of the gang, if this attempt was its user."""
    where = (gangs.c.allocation_id == row.id, gangs.c.attempt_id == attempt_id)
    conn.execute(gangs.update().where(*where).values(attempt_id=next_id, unclear=sorted(held_hosts(conn, row.id))))


def leave_gang(conn: Connection, now: datetime, row: AllocationRow, attempt_id: int) -> None:
    """Keep the gang for the next task after an attempt has ended.

    An attempt that only waited changes nothing. If a host has not confirmed that the attempt's processes have
    ended, the gang ends, because no task may use that host.
    """
    gang = held_gang(conn, row.id)
    if gang.attempt_id != attempt_id or row.state == "released":
        return
    held = held_hosts(conn, row.id)
    unclear = sorted(held & set(gang.unclear))
    if unclear:
        set_allocation(conn, row.id, row.state, "expired")
        why = gang.ended_because or f"host {', '.join(unclear)} did not confirm the end of the task that used it"
        set_gang(conn, row.id, ended_because=why)
        for host in sorted(held - set(unclear)):
            release_host(conn, now, row.id, host, "clear")
        return
    until = now + timedelta(seconds=gang.hold_for_s)
    set_gang(conn, row.id, attempt_id=None, unclear=[], held_until=until)
    if gang.ended_because is not None or held != held_hosts(conn, row.id, released=True):
        release_host(conn, now, row.id, None, "clear")
        return
    if row.state == "stopping":
        set_allocation(conn, row.id, "stopping", "starting")
    set_allocation(conn, row.id, "starting" if row.state == "stopping" else row.state, "running")
    bump(conn, row.pool)


def require_confirmed(conn: Connection, row: AllocationRow, attempt_id: int) -> None:
    """Check that no process of the attempt can run on the gang's hosts.

    :raises ConflictError: hosts have not confirmed that
    """
    gang = held_gang(conn, row.id)
    if gang.attempt_id == attempt_id and gang.unclear:
        raise ConflictError(
            f"Attempt {attempt_id} cannot wait again: hosts {', '.join(gang.unclear)} have not confirmed that its "
            "processes have ended. Fence and release these hosts first."
        )


def confirm_host(conn: Connection, now: datetime, row: AllocationRow, attempt_id: int, host: str, proof: Proof) -> None:
    """Record that no process of the attempt runs on a host.

    The slots of the host are freed only if the gang has ended.
    """
    gang = held_gang(conn, row.id)
    if gang.attempt_id is None or row.state == "released":
        return
    if gang.attempt_id != attempt_id:
        raise StaleWatchError(
            f"Attempt {gang.attempt_id} uses the gang of attempt {attempt_id} now, so its slots stay held."
        )
    left = [name for name in gang.unclear if name != host]
    set_gang(conn, row.id, unclear=left)
    if row.state == "expired":
        set_gang(conn, row.id, attempt_id=attempt_id if left else None)
        release_host(conn, now, row.id, host, proof)


def end_held_gang(conn: Connection, now: datetime, row: AllocationRow, because: str) -> None:
    """End a held gang.

    The slots of an unused gang are free at once, because its hosts have confirmed the end of every run. A gang in
    use ends with the attempt that uses it, whose follower is notified by :meth:`ControlRequests.pending`.

    :param because: why, in words
    """
    gang = held_gang(conn, row.id)
    if gang.ended_because is None:
        set_gang(conn, row.id, ended_because=because)
    if row.state in {"waiting", "granted"}:
        release_host(conn, now, row.id, None, "untaken")
        bump(conn, row.pool)
    elif gang.attempt_id is None and row.state != "released":
        was_used = sa.select(attempts.c.id).where(attempts.c.allocation_id == row.id, attempts.c.plan.is_not(None))
        proof: Proof = "untaken" if conn.scalar(was_used.limit(1)) is None else "clear"
        release_host(conn, now, row.id, None, proof)


def end_expired_gangs(conn: Connection, now: datetime, pool: str, forgotten: timedelta) -> None:
    """End a pool's unused gangs whose hold time is over, and its forgotten gang requests.

    :param forgotten: time without a renewal after which the task of a request is considered gone
    """
    idle = sa.and_(
        allocations.c.state.in_(ALLOCATION_LIVE),
        gangs.c.attempt_id.is_(None),
        sa.or_(gangs.c.held_until <= now, gangs.c.ended_because.is_not(None)),
    )
    late = sa.and_(allocations.c.state == "waiting", allocations.c.renewed_at <= now - forgotten)
    query = sa.select(allocations, gangs.c.hold_for_s).join(gangs, gangs.c.allocation_id == allocations.c.id)
    for row in conn.execute(query.where(allocations.c.pool == pool, sa.or_(idle, late))).all():
        why = f"no task used it for {row.hold_for_s:.0f} s"
        if row.state == "waiting":
            why = f"its request was not renewed for {forgotten.total_seconds() / 3600:.0f} h: its task is gone"
        end_held_gang(conn, now, row, why)
