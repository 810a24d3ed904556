"""Gangs that outlive the attempts that use them: one task takes them, others use them one after the other.

Such a gang's allocation has no trial. It is ``running`` while nobody uses it, and follows the attempt that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.errors import ConflictError, GangEndedError, StaleWatchError
from airflow_provider_dtrain.store.base import LIVE_ALLOCATION, bump
from airflow_provider_dtrain.store.holding import Holding, held_rows
from airflow_provider_dtrain.store.records import Proof
from airflow_provider_dtrain.store.tables import allocation_slots, allocations, attempts, gangs, trials


def trial_words(trial_id: int, dag_id: str, task_id: str, map_index: int) -> str:
    """Return a trial by the names that Airflow's pages show, for people."""
    mapped = f"[{map_index}]" if map_index >= 0 else ""
    return f"{dag_id}.{task_id}{mapped} (trial {trial_id})"


def gang_words(dag_id: str, task_id: str) -> str:
    """Return whose a held gang is, for people."""
    return f"gang of {dag_id}/{task_id}"


class Held(Holding):
    """What attempts leave behind on a held gang; callers hold the lock of the pool."""

    def _gang(self, conn: Connection, allocation_id: int) -> Row[Any]:
        """Return a held gang's row, locked; callers know that there is one."""
        return conn.execute(sa.select(gangs).where(gangs.c.allocation_id == allocation_id).with_for_update()).one()

    def _set_gang(self, conn: Connection, allocation_id: int, **values: Any) -> None:
        conn.execute(gangs.update().where(gangs.c.allocation_id == allocation_id).values(**values))

    def _stay_with_gang(self, conn: Connection, row: Row[Any], attempt: Row[Any], *, keep: bool) -> str:
        """Return in which state the trial's next attempt begins on the same held gang.

        :param keep: nothing runs on its hosts any more, and the attempt had not ended before
        :raises GangEndedError: the gang is not there any more
        """
        gang = self._gang(conn, row.id)
        check_gang(row, gang, row.token)
        if keep and gang.attempt_id == attempt.id:
            self._set_allocation(conn, row.id, row.state, "starting")
            return "starting"
        self._leave_gang(conn, row, attempt.id)
        return "waiting"

    def _pass_gang_on(self, conn: Connection, row: Row[Any], attempt_id: int, next_id: int) -> None:
        """Let the trial's next attempt be the one that uses the gang, if this one was."""
        where = (gangs.c.allocation_id == row.id, gangs.c.attempt_id == attempt_id)
        conn.execute(gangs.update().where(*where).values(attempt_id=next_id, unclear=sorted(_held(conn, row.id))))

    def _leave_gang(self, conn: Connection, row: Row[Any], attempt_id: int) -> None:
        """Let the gang be held for the next task when an attempt has ended; an attempt that waited leaves nothing.

        Where a host has not confirmed that nothing of the attempt runs, the gang ends: nobody may use that host.
        """
        gang = self._gang(conn, row.id)
        if gang.attempt_id != attempt_id or row.state == "released":
            return
        held = _held(conn, row.id)
        unclear = sorted(held & set(gang.unclear))
        if unclear:
            self._set_allocation(conn, row.id, row.state, "expired")
            why = gang.ended_because or f"host {', '.join(unclear)} did not confirm the end of the task that used it"
            self._set_gang(conn, row.id, ended_because=why)
            for host in sorted(held - set(unclear)):
                self._release_host(conn, row.id, host, "clear")
            return
        until = self._now() + timedelta(seconds=gang.hold_for_s)
        self._set_gang(conn, row.id, attempt_id=None, unclear=[], held_until=until)
        if gang.ended_because is not None or held != _held(conn, row.id, released=True):
            self._release_host(conn, row.id, None, "clear")
            return
        if row.state == "stopping":
            self._set_allocation(conn, row.id, "stopping", "starting")
        self._set_allocation(conn, row.id, "starting" if row.state == "stopping" else row.state, "running")
        bump(conn, row.pool)

    def _require_confirmed(self, conn: Connection, row: Row[Any], attempt_id: int) -> None:
        """Do nothing when nothing of the attempt can run on the gang's hosts.

        :raises ConflictError: hosts have not confirmed that
        """
        gang = self._gang(conn, row.id)
        if gang.attempt_id == attempt_id and gang.unclear:
            raise ConflictError(
                f"Attempt {attempt_id} cannot wait again: hosts {', '.join(gang.unclear)} have not confirmed that "
                "nothing of it runs there. Fence and release them first."
            )

    def _confirm(self, conn: Connection, row: Row[Any], attempt_id: int, host: str, proof: Proof) -> None:
        """Note that nothing of the attempt runs on a host any more; it is free only if the gang has ended, too."""
        gang = self._gang(conn, row.id)
        if gang.attempt_id is None or row.state == "released":
            return
        if gang.attempt_id != attempt_id:
            raise StaleWatchError(f"Attempt {gang.attempt_id} uses the gang of attempt {attempt_id}: it stays held.")
        left = [name for name in gang.unclear if name != host]
        self._set_gang(conn, row.id, unclear=left)
        if row.state == "expired":
            self._set_gang(conn, row.id, attempt_id=attempt_id if left else None)
            self._release_host(conn, row.id, host, proof)

    def _end_gang(self, conn: Connection, row: Row[Any], because: str) -> None:
        """End a held gang. It is free at once when nobody uses it: its hosts have confirmed the end of every run.

        One in use ends with the attempt that uses it, whose follower is told by ``wishes``.

        :param because: why, in words
        """
        gang = self._gang(conn, row.id)
        if gang.ended_because is None:
            self._set_gang(conn, row.id, ended_because=because)
        if row.state in {"waiting", "granted"}:
            self._release_host(conn, row.id, None, "untaken")
            bump(conn, row.pool)
        elif gang.attempt_id is None and row.state != "released":
            was_used = sa.select(attempts.c.id).where(attempts.c.allocation_id == row.id, attempts.c.plan.is_not(None))
            proof: Proof = "untaken" if conn.scalar(was_used.limit(1)) is None else "clear"
            self._release_host(conn, row.id, None, proof)

    def _end_expired_gangs(self, conn: Connection, pool: str, now: datetime, forgotten: timedelta) -> list[int]:
        """End gangs of a pool that nobody used for as long as they are held, and requests for one that nobody renewed.

        :param forgotten: age of a request whose task is gone
        """
        idle = sa.and_(
            allocations.c.state.in_(LIVE_ALLOCATION),
            gangs.c.attempt_id.is_(None),
            sa.or_(gangs.c.held_until <= now, gangs.c.ended_because.is_not(None)),
        )
        late = sa.and_(allocations.c.state == "waiting", allocations.c.renewed_at <= now - forgotten)
        query = sa.select(allocations, gangs.c.hold_for_s).join(gangs, gangs.c.allocation_id == allocations.c.id)
        ended = []
        for row in conn.execute(query.where(allocations.c.pool == pool, sa.or_(idle, late))).all():
            why = f"no task used it for {row.hold_for_s:.0f} s"
            if row.state == "waiting":
                why = f"nobody renewed its request for {forgotten.total_seconds() / 3600:.0f} h: its task is gone"
            self._end_gang(conn, row, why)
            ended.append(int(row.id))
        return ended


def last_users() -> sa.ColumnElement[bool]:
    """Return the condition for the attempts that may have left something on an allocation's hosts.

    Of a gang that was granted to a trial it is the newest one; on a held gang newer ones may wait their turn.
    """
    newest = sa.select(sa.func.max(attempts.c.id)).group_by(attempts.c.allocation_id)
    users = sa.select(gangs.c.attempt_id).where(gangs.c.attempt_id.is_not(None))
    own = sa.and_(allocations.c.trial_id.is_not(None), attempts.c.id.in_(newest))
    return sa.or_(own, attempts.c.id.in_(users))


def gang_rows(conn: Connection, pool: str | None) -> Sequence[Row[Any]]:
    """Return held gangs and the requests for them, each with the attempt that uses it, as ``Store.tasks`` reads them.

    :param pool: None = of all pools
    """
    query: sa.Select[Any] = sa.select(
        *(column for column in allocations.c if column.name != "trial_id"),
        trials.c.id.label("trial_id"), trials.c.number.label("trial_number"), trials.c.experiment_id,
        sa.null().label("experiment"), attempts.c.id.label("attempt_id"), attempts.c.number.label("attempt_number"),
        sa.func.coalesce(attempts.c.reason, "").label("attempt_reason"), attempts.c.state.label("attempt_state"),
        attempts.c.renewed_at.label("followed_at"),
        gangs.c.dag_id, gangs.c.run_id, gangs.c.task_id, gangs.c.map_index, gangs.c.max_tries,
    )  # fmt: skip
    joined = gangs.join(allocations, allocations.c.id == gangs.c.allocation_id)
    joined = joined.outerjoin(attempts, attempts.c.id == gangs.c.attempt_id)
    joined = joined.outerjoin(trials, trials.c.id == attempts.c.trial_id)
    of_pool = sa.true() if pool is None else allocations.c.pool == pool
    return conn.execute(query.select_from(joined).where(allocations.c.state != "released", of_pool)).all()


def check_gang(row: Row[Any], gang: Row[Any], token: int | None) -> None:
    """Do nothing when the grant that ``token`` stands for can still be used.

    :param row: of the allocation
    :raises GangEndedError: the gang has ended, or the token is of another grant
    """
    who = f"The {gang_words(gang.dag_id, gang.task_id)} (allocation {row.id})"
    if gang.ended_because is not None or row.state in {"released", "expired"}:
        raise GangEndedError(
            f"{who} has ended: {gang.ended_because or 'its slots were released'}. Clear the task '{gang.task_id}': it "
            "gets another gang, and the tasks after it run again."
        )
    if row.token != token:
        raise GangEndedError(
            f"{who} is held under token {row.token}, not {token}: what was given here is of an older grant. Clear the "
            f"task '{gang.task_id}' and the tasks after it."
        )


def _held(conn: Connection, allocation_id: int, *, released: bool = False) -> set[str]:
    where = [allocation_slots.c.allocation_id == allocation_id, *(() if released else (held_rows(),))]
    return set(conn.scalars(sa.select(allocation_slots.c.host).where(*where)))
