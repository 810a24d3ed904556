"""State transitions of attempts, trials and experiments. Callers hold the lock of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.lifecycle.control import ControlRequest
from airflow_provider_dtrain.core.lifecycle.states import AttemptState, ExperimentState
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.errors import ConflictError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import AllocationRow, AttemptRow, ExperimentRow
from airflow_provider_dtrain.store.database.tables import attempts, experiments, searches, trials
from airflow_provider_dtrain.store.database.transactions import bump, count
from airflow_provider_dtrain.store.meter import Metric
from airflow_provider_dtrain.store.queue.accounting import held_s
from airflow_provider_dtrain.store.queue.held_gangs import leave_gang
from airflow_provider_dtrain.store.queue.slot_release import (
    ALLOCATION,
    free_rows,
    move_allocation,
    release_host,
    set_allocation,
)
from airflow_provider_dtrain.store.records.searches import SearchSubmission
from airflow_provider_dtrain.store.records.trials import EndState, TrialSubmission
from airflow_provider_dtrain.store.rungs import note_failure
from airflow_provider_dtrain.store.timeline.notes import note

#: End state of a trial -> end state of its attempt.
ATTEMPT_END: Mapping[EndState, AttemptState] = {
    "completed": AttemptState.COMPLETED,
    "stopped": AttemptState.COMPLETED,
    "errored": AttemptState.FAILED,
    "killed": AttemptState.FAILED,
}


_TRIAL: sa.BindParameter[int] = sa.bindparam("trial")
_LOCK_TRIAL = sa.select(trials.c.state, trials.c.dag_id).where(trials.c.id == _TRIAL).with_for_update()
_EXPERIMENT_OF = sa.select(trials.c.experiment_id).where(trials.c.id == _TRIAL).scalar_subquery()
_LOCK_EXPERIMENT_OF = (
    sa.select(experiments.c.id, experiments.c.control_request)
    .where(experiments.c.id == _EXPERIMENT_OF)
    .with_for_update()
)
_SAME_EXPERIMENT = ("dag_id", "run_id", "name")
_LOCK_EXPERIMENT = (
    sa.select(experiments)
    .where(*(experiments.c[name] == sa.bindparam(f"of_{name}") for name in _SAME_EXPERIMENT))
    .with_for_update()
)
_SEARCH_OF = (
    sa.select(searches.c.id, searches.c.max_trials, searches.c.ended_at)
    .where(searches.c.experiment_id == _EXPERIMENT_OF)
    .order_by(searches.c.generation.desc())
    .limit(1)
)
#: State -> number of an experiment's current trials. Older trials of a cleared task or plan remain only as history.
_TRIALS_BESIDE = (
    sa.select(trials.c.state, sa.func.count().label("all"), sa.func.count(trials.c.search_id).label("planned"))
    .where(trials.c.experiment_id == _EXPERIMENT_OF, trials.c.cleared_at.is_(None))
    .where(sa.or_(trials.c.search_id.is_(None), trials.c.search_id == sa.bindparam("search")))
    .group_by(trials.c.state)
)


def experiment_end(trials_by_state: Mapping[str, int], request: ControlRequest | None) -> ExperimentState | None:
    """Return the end state of an experiment by its trials, None when no trial has ended.

    :param request: the control request of a user
    """
    if request == "kill" and trials_by_state.get("killed"):
        return ExperimentState.KILLED
    if trials_by_state.get("completed") or trials_by_state.get("stopped"):
        return ExperimentState.COMPLETED
    if trials_by_state.get("killed"):
        return ExperimentState.KILLED
    return ExperimentState.ERRORED if trials_by_state.get("errored") else None


def mark_of(state: EndState, failure: Mapping[str, Any] | None, old: str) -> AttemptState:
    """Return the end state of an attempt whose trial ends in ``state``: ``lost`` when a host failed."""
    end = ATTEMPT_END[state]
    is_lost = end == AttemptState.FAILED and failure is not None and failure.get("kind") == "infra"
    return AttemptState.LOST if is_lost and AttemptState.LOST in states.allowed("attempt", old) else end


def set_attempt(conn: Connection, attempt: AttemptRow, state: AttemptState, **values: Any) -> None:
    """Move an attempt to another state, and set its columns.

    :raises IllegalTransitionError: the table of transitions does not allow it
    """
    if attempt.state != state:
        states.check("attempt", attempt.state, state)
    statements.update(conn, attempts, attempt.id, state=state, **values)


def set_trial(conn: Connection, trial_id: int, state: str, **values: Any) -> str:
    """Move a trial to another state, set its columns, and return its DAG.

    :raises IllegalTransitionError: the table of transitions does not allow it
    """
    old, dag_id = statements.first(conn, _LOCK_TRIAL, {"trial": trial_id})
    if old != state:
        states.check("trial", old, state)
    statements.update(conn, trials, trial_id, state=state, **values)
    return str(dag_id)


def end_attempt(
    conn: Connection,
    now: datetime,
    attempt: AttemptRow,
    state: EndState,
    failure: Mapping[str, Any] | None,
    result: Mapping[str, Any] | None,
) -> None:
    """End an attempt, its trial and its waiting request, and the experiment after its last trial."""
    result = attempt.result if result is None else result
    values = {"failure": failure, "result": result, "ended_at": now}
    set_attempt(conn, attempt, mark_of(state, failure, attempt.state), **values)
    dag_id = set_trial(conn, attempt.trial_id, state, **values)
    row = statements.first(conn, ALLOCATION, {"gang": attempt.allocation_id})
    count(conn, Metric.TRIAL_FINISH, state=state, pool_name=row.pool, dag_id=dag_id)
    if row.trial_id is None:
        leave_gang(conn, now, row, attempt.id)
    else:
        expire(conn, now, row)
    _end_experiment(conn, now, attempt.trial_id)
    if state in {"errored", "killed"}:
        note_failure(conn, attempt, now)


def expire(conn: Connection, now: datetime, row: AllocationRow) -> None:
    """Take the gang from its attempt.

    The gang is released when no process was started, otherwise held until the hosts confirm the end.
    """
    if row.state in {"waiting", "granted"}:
        release_host(conn, now, row.id, None, "untaken")
        bump(conn, row.pool)
    elif row.state in states.ACTIVE:
        move_allocation(conn, row.id, row.state, "expired")


def ungrant(conn: Connection, now: datetime, row: AllocationRow, reason: str) -> AllocationRow:
    """Revoke a grant under which no process was started, and return the updated allocation.

    A follower takes a grant up without the lock of the pool. If it was first, nothing is changed.
    """
    values = {
        "token": None,
        "granted_at": None,
        "reason": reason,
        "reason_since_s": now.timestamp(),
        "eligible_since": now,
    }
    if set_allocation(conn, row.id, "granted", "waiting", **values, held_s=held_s(row, now)):
        if row.trial_id is not None and row.granted_at is not None:
            note(conn, row.trial_id, TimelineKind.GRANTED, row.granted_at, until=now, value=row.token)
            note(conn, row.trial_id, TimelineKind.RETURNED, now, message=reason)
        free_rows(conn, now, row.id, "untaken")
        bump(conn, row.pool)
    found: AllocationRow = statements.first(conn, ALLOCATION, {"gang": row.id})
    return found


def open_experiment(conn: Connection, now: datetime, of: TrialSubmission | SearchSubmission) -> ExperimentRow:
    """Return the locked row of a new or existing experiment.

    An existing experiment that had ended runs again.

    :param of: its share, owner and project are read only when the experiment is created
    :raises ConflictError: the experiment is being deleted
    """
    same = {"dag_id": of.key.dag_id, "run_id": of.key.run_id, "name": of.experiment_name}
    own = {"weight": of.weight, "max_slots": of.max_slots, "owner": of.owner, "project": of.project}
    statements.add_unless(conn, experiments, _SAME_EXPERIMENT, **same, **own, state="running", created_at=now)
    asked = {f"of_{column}": value for column, value in same.items()}
    row: ExperimentRow = statements.first(conn, _LOCK_EXPERIMENT, asked)
    if row.delete_requested_at is not None:
        raise ConflictError(
            f"Experiment {row.id} is being deleted, so no trial of it can start. Once it is removed, clear the task."
        )
    if row.state == "running":
        return row
    # The control requests of users were done when it ended.
    statements.update(
        conn,
        experiments,
        row.id,
        state="running",
        ended_at=None,
        control_request=None,
        requested_by=None,
        archived=False,
    )
    again: ExperimentRow = statements.first(conn, _LOCK_EXPERIMENT, asked)
    return again


def _end_experiment(conn: Connection, now: datetime, trial_id: int) -> None:
    """End a trial's experiment if this was its last trial.

    A search must have submitted all its planned trials, or must have ended.
    """
    # Locked, so that of two trials that end at once the second transaction sees the first.
    of = statements.first(conn, _LOCK_EXPERIMENT_OF, {"trial": trial_id})
    newest = next(iter(statements.read(conn, (_SEARCH_OF,), {"trial": trial_id})[0]), None)
    search = None if newest is None else newest.id
    rows = statements.read(conn, (_TRIALS_BESIDE,), {"trial": trial_id, "search": search})[0]
    counts = {row.state: row.all for row in rows}
    planned = sum(row.planned for row in rows)
    state = experiment_end(counts, of.control_request)
    is_open = newest is not None and newest.ended_at is None and planned < newest.max_trials
    if state is None or is_open or any(row.state in states.TRIAL_LIVE for row in rows):
        return
    statements.update(conn, experiments, of.id, state=state, ended_at=now)
