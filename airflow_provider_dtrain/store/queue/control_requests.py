"""Control requests (kill, pause, stop, priority) to trials, and the query with which followers read them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Unpack

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.lifecycle.control import OF_PLACE, OF_QUEUE, Change, ControlRequest, Noun
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, UserError
from airflow_provider_dtrain.store.database.rows import AllocationRow, TrialRow
from airflow_provider_dtrain.store.database.tables import (
    allocations,
    attempts,
    experiments,
    external_jobs,
    gangs,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import Database, bump, lock_pool, lock_pool_of, reads, writes
from airflow_provider_dtrain.store.labels import set_labels
from airflow_provider_dtrain.store.places import set_place
from airflow_provider_dtrain.store.queue.accounting import NOTHING_KEPT, ineligible, paused_by
from airflow_provider_dtrain.store.queue.evacuations import IS_EVACUATED, evacuation_of
from airflow_provider_dtrain.store.queue.transitions import set_trial, ungrant
from airflow_provider_dtrain.store.records.queue import Evacuation, PendingControlRequests
from airflow_provider_dtrain.store.timeline.notes import enter_wait, note, note_all
from airflow_provider_dtrain.store.views import CLAIMANTS, FOLLOWED, claimant_of

_ASKED_BACK = (
    sa.select(external_jobs.c.asked_back)
    .where(external_jobs.c.allocation_id == allocations.c.id)
    .order_by(external_jobs.c.id.desc())
    .limit(1)
    .correlate(allocations)
    .scalar_subquery()
    .label("asked_back")
)
_PENDING: sa.Select[Any] = (
    sa.select(
        trials.c.kill_requested_at,
        trials.c.kill_requested_by,
        trials.c.pause_requested_at,
        trials.c.pause_requested_by,
        trials.c.stop_requested_at,
        trials.c.stop_requested_by,
        allocations.c.preempted_at,
        CLAIMANTS.c.trial_id.label("claimant_trial"),
        gangs.c.ended_because,
        _ASKED_BACK,
        IS_EVACUATED,
    )
    .select_from(FOLLOWED)
    .where(attempts.c.id == sa.bindparam("attempt"))
)


class ControlRequests:
    """Control requests. The store only records a request, which the attempt's follower reads and executes."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def pending(self, conn: Connection, attempt_id: int) -> PendingControlRequests:
        """Return the control requests to the follower of an attempt. This is one indexed read.

        A second one follows while a host of its gang is to be empty by a deadline.

        :raises NotFoundError: there is no such attempt
        """
        row: Row[Any] | None = conn.execute(_PENDING, {"attempt": attempt_id}).one_or_none()
        if row is None:
            raise NotFoundError(f"There is no attempt {attempt_id}.")
        return PendingControlRequests(
            kill_by=None if row.kill_requested_at is None else row.kill_requested_by or "an unknown user",
            pause_by=None if row.pause_requested_at is None else row.pause_requested_by or "an unknown user",
            stop_by=None if row.stop_requested_at is None else row.stop_requested_by or "an unknown user",
            preempted_for=claimant_of(row),
            asked_back=row.asked_back,
            gang_ended=row.ended_because,
            evacuation=evacuation_of(conn, attempt_id) if row.is_evacuated else Evacuation(),
        )

    @writes
    def kill(self, conn: Connection, trial_id: int, by: str) -> None:
        """Request that the follower of a trial kills it.

        :param by: the user
        :raises NotFoundError: there is no such trial
        """
        values = {"kill_requested_at": self.db.now(), "kill_requested_by": by}
        if not conn.execute(trials.update().where(trials.c.id == trial_id).values(**values)).rowcount:
            raise _no_trial(trial_id)
        self.db.audit(conn, by, "kill requested", f"trial {trial_id}")

    @writes
    def stop(self, conn: Connection, trial_id: int, by: str) -> int:
        """Request that a trial ends with its best result so far, and return 1, or 0 if it has ended.

        A running trial writes a checkpoint first. Its end is a success.

        :param by: the user
        :raises NotFoundError: there is no such trial
        """
        if conn.scalar(sa.select(trials.c.id).where(trials.c.id == trial_id)) is None:
            raise _no_trial(trial_id)
        self.db.audit(conn, by, "stop requested", f"trial {trial_id}")
        return request_end(conn, self.db.now(), trials.c.id == trial_id, "stop", by)

    @writes
    def note_exec(self, conn: Connection, trial_id: int, rank: int, by: str, command: str) -> None:
        """Record that a user runs a command in the environment of a rank, before it runs.

        :param by: the user
        :param command: its words, quoted; cut to 4000 characters
        :raises NotFoundError: there is no such trial
        """
        if conn.scalar(sa.select(trials.c.id).where(trials.c.id == trial_id)) is None:
            raise _no_trial(trial_id)
        self.db.audit(conn, by, "exec", f"trial {trial_id} rank {rank}", command[:4000])

    @writes
    def pause(self, conn: Connection, trial_id: int, by: str) -> None:
        """Pause a trial: it saves a checkpoint and releases its slots until it is activated.

        A waiting request, or one whose grant was not taken up yet, is paused at once. Repeatable.

        :param by: the user
        :raises NotFoundError: there is no such trial
        :raises ConflictError: it has ended, or its gang is held for other tasks as well
        """
        pause_trial(self.db, conn, trial_id, by)

    @writes
    def activate(self, conn: Connection, trial_id: int, by: str) -> bool:
        """Resume a paused trial in its place in the queue, and return whether a pause was requested.

        :param by: the user
        :raises NotFoundError: there is no such trial
        """
        return activate_trial(self.db, conn, trial_id, by)

    @writes
    def set(self, conn: Connection, noun: Noun, number: int, *, by: str, **change: Unpack[Change]) -> None:
        """Change labels, priority and share of a trial or an experiment, all of them or none.

        The priority applies to all its gangs, waiting or running.

        :param by: the user
        :raises NotFoundError: there is none with this id
        :raises UserError: a value is out of range, a label is not usable, or a trial has no such value
        """
        if noun == "trial" and (wrong := change.keys() & {"weight", "max_slots", *OF_PLACE}):
            raise UserError(f"A trial has no {' and no '.join(sorted(wrong))}: set it for its experiment.")
        of_trials = trials.c.id == number if noun == "trial" else trials.c.experiment_id == number
        if OF_QUEUE & change.keys():
            # Pools are locked before rows that belong to them.
            bump_pools(conn, of_trials)
        table = trials if noun == "trial" else experiments
        # Two users who change labels at the same time follow each other.
        if conn.scalar(sa.select(table.c.id).where(table.c.id == number).with_for_update()) is None:
            raise NotFoundError(f"There is no {noun} {number}. See: airflow dtrain {noun}s list")
        if "priority" in change:
            _set_priority(conn, self.db.now(), of_trials, change["priority"], by)
        if shares := _shares(change):
            conn.execute(experiments.update().where(experiments.c.id == number).values(**shares))
        if of_queue := {name: value for name, value in change.items() if name in OF_QUEUE}:
            details = ", ".join(f"{name}={value}" for name, value in of_queue.items())
            self.db.audit(conn, by, f"{noun} set", f"{noun} {number}", details)
        if change.keys() & OF_PLACE:
            set_place(self.db, conn, number, change, by)
        if change.keys() - OF_QUEUE - OF_PLACE:
            set_labels(self.db, conn, noun, number, change, by)

    @writes
    def set_gang_priority(self, conn: Connection, allocation_id: int, priority: int, by: str = "") -> None:
        """Change the priority of a gang that waits or holds slots.

        :param priority: 1 to 99, smaller first
        :param by: the user
        :raises NotFoundError: no such gang waits or holds slots
        :raises UserError: the priority is out of range
        """
        _check_priority(priority)
        own = (allocations.c.id == allocation_id, allocations.c.state.in_(states.ALLOCATION_LIVE))
        pool = conn.scalar(sa.select(allocations.c.pool).where(*own))
        if pool is not None:
            lock_pool(conn, pool)
            of_trial = trials.c.id.in_(sa.select(allocations.c.trial_id).where(*own))
            note_all(conn, of_trial, TimelineKind.PRIORITY_SET, self.db.now(), by=by, value=priority)
            found = conn.execute(allocations.update().where(*own).values(priority=priority)).rowcount
            bump(conn, pool)
        if pool is None or not found:
            raise NotFoundError(f"No gang {allocation_id} waits or holds slots. See: airflow dtrain queue list")
        self.db.audit(conn, by, "priority set", f"gang {allocation_id}", str(priority))


def _check_priority(priority: int) -> None:
    if not 1 <= priority <= 99:
        raise UserError(f"The priority must be from 1 (first) to 99, got {priority}.")


def _no_trial(trial_id: int) -> NotFoundError:
    return NotFoundError(f"There is no trial {trial_id}. See: airflow dtrain trials list")


def _shares(change: Change) -> dict[str, float | None]:
    """Return the columns of an experiment that a change sets.

    :raises UserError: a value is out of range
    """
    shares: dict[str, float | None] = {}
    if "weight" in change:
        if not 0 < (weight := change["weight"]) < float("inf"):
            raise UserError(f"weight must be finite and above 0 (the default is 1), got {weight:g}.")
        shares["weight"] = weight
    if "max_slots" in change:
        if (most := change["max_slots"]) < 0:
            raise UserError(f"max_slots must be 0 (no cap) or more, got {most}.")
        shares["max_slots"] = most or None
    return shares


def _set_priority(conn: Connection, now: datetime, of_trials: sa.ColumnElement[bool], priority: int, by: str) -> None:
    """Change the priority of the gangs of these trials, waiting or running. Their pools are locked."""
    _check_priority(priority)
    own = sa.select(trials.c.id).where(of_trials)
    where = (allocations.c.trial_id.in_(own), allocations.c.state.in_(states.ALLOCATION_LIVE))
    changed = trials.c.id.in_(sa.select(allocations.c.trial_id).where(*where, allocations.c.priority != priority))
    note_all(conn, changed, TimelineKind.PRIORITY_SET, now, by=by, value=priority)
    conn.execute(allocations.update().where(*where).values(priority=priority))


def bump_pools(conn: Connection, of_trials: sa.ColumnElement[bool]) -> None:
    """Lock the pools in which these trials wait or run, and make their next passes due."""
    query = sa.select(allocations.c.pool).join(trials, trials.c.id == allocations.c.trial_id)
    for pool in sorted(set(conn.scalars(query.where(of_trials, allocations.c.state.in_(states.ALLOCATION_LIVE))))):
        lock_pool(conn, pool)
        bump(conn, pool)


def _locked_trial(conn: Connection, trial_id: int) -> tuple[TrialRow, AllocationRow]:
    """Return a trial and its newest allocation, with their pool locked."""
    newest = sa.select(attempts.c.id).where(attempts.c.trial_id == trial_id).order_by(attempts.c.number.desc()).limit(1)
    attempt_id = conn.scalar(newest)
    if attempt_id is None:
        raise _no_trial(trial_id)
    lock_pool_of(conn, attempt_id)
    # Read again, because the trial may have started another attempt while this transaction waited for the lock.
    allocation = sa.select(attempts.c.allocation_id).where(attempts.c.id == newest.scalar_subquery())
    row = conn.execute(sa.select(allocations).where(allocations.c.id == allocation.scalar_subquery())).one()
    return conn.execute(sa.select(trials).where(trials.c.id == trial_id).with_for_update()).one(), row


def _pause_request(conn: Connection, now: datetime, trial: TrialRow, row: AllocationRow) -> None:
    if not row.paused:
        enter_wait(conn, row, now)
    values = {**ineligible(row, now), **NOTHING_KEPT, "paused": True, "reason": paused_by(conn, trial)}
    conn.execute(allocations.update().where(allocations.c.id == row.id).values(**values))
    if trial.state != "paused":
        set_trial(conn, trial.id, "paused")
    bump(conn, row.pool)


def pause_trial(db: Database, conn: Connection, trial_id: int, by: str) -> None:
    """Pause a trial, as :meth:`ControlRequests.pause` does, within a transaction."""
    now = db.now()
    trial, row = _locked_trial(conn, trial_id)
    if states.is_final("trial", trial.state) or trial.state in {"errored", "killed"}:
        raise ConflictError(f"Trial {trial_id} is {trial.state}: there is nothing to pause.")
    if conn.scalar(sa.select(gangs.c.allocation_id).where(gangs.c.allocation_id == row.id)) is not None:
        raise ConflictError(
            f"Trial {trial_id} uses a gang that is held for several tasks: a pause would free no slot. "
            f"To end the trial: airflow dtrain trials kill {trial_id}"
        )
    values = {"pause_requested_at": now, "pause_requested_by": by}
    conn.execute(trials.update().where(trials.c.id == trial_id).values(**values))
    if trial.pause_requested_at is None:
        note(conn, trial_id, TimelineKind.PAUSED, now, by=by)
    db.audit(conn, by, "pause requested", f"trial {trial_id}")
    if row.state == "granted":
        row = ungrant(conn, now, row, "it is paused")
    if row.state == "waiting":
        trial = conn.execute(sa.select(trials).where(trials.c.id == trial_id)).one()
        _pause_request(conn, now, trial, row)


def activate_trial(db: Database, conn: Connection, trial_id: int, by: str) -> bool:
    """Activate a trial, as :meth:`ControlRequests.activate` does, within a transaction."""
    trial, row = _locked_trial(conn, trial_id)
    if trial.pause_requested_at is None:
        return False
    note(conn, trial_id, TimelineKind.ACTIVATED, db.now(), by=by)
    values = {"pause_requested_at": None, "pause_requested_by": None}
    conn.execute(trials.update().where(trials.c.id == trial_id).values(**values))
    if row.paused and row.state == "waiting":
        now = db.now()
        again = {"paused": False, "reason": "", "reason_since_s": now.timestamp(), "eligible_since": now}
        conn.execute(allocations.update().where(allocations.c.id == row.id).values(**again))
    if trial.state == "paused":
        set_trial(conn, trial_id, "queued")
    bump(conn, row.pool)
    db.audit(conn, by, "activated", f"trial {trial_id}")
    return True


def request_end(
    conn: Connection, now: datetime, of_trials: sa.ColumnElement[bool], request: ControlRequest, by: str
) -> int:
    """Request a stop or a kill of these trials, and return the number of those that have not ended."""
    at = f"{request}_requested_at"
    column = f"{request}_requested_by"
    # Airflow may retry an errored trial, which must then end at once.
    asked = (of_trials, trials.c.state.in_((*states.TRIAL_LIVE, "errored")), trials.c[at].is_(None))
    conn.execute(trials.update().where(*asked).values({at: now, column: by}))
    live = (of_trials, trials.c.state.in_(states.TRIAL_LIVE))
    return int(conn.scalar(sa.select(sa.func.count()).select_from(trials).where(*live)) or 0)
