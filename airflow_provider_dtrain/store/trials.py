"""Trials and their submission."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_SUCCEEDED, TrialState
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.errors import NotFoundError, UnplaceableError, UserError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.filters import has_tags, in_states
from airflow_provider_dtrain.store.database.rows import ExperimentRow, PoolRow, columns_of, record_of
from airflow_provider_dtrain.store.database.statements import Values
from airflow_provider_dtrain.store.database.tables import (
    allocations,
    attempts,
    configs,
    payloads,
    searches,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import Database, bump, lock_pool, reads, writes
from airflow_provider_dtrain.store.queue.accounting import paused_by
from airflow_provider_dtrain.store.queue.feasibility import never_reason
from airflow_provider_dtrain.store.queue.transitions import open_experiment
from airflow_provider_dtrain.store.records.pages import Dags
from airflow_provider_dtrain.store.records.trials import (
    HANDED_OVER,
    HandOver,
    Ticket,
    TrialSubmission,
    TrialView,
)
from airflow_provider_dtrain.store.rungs import leave
from airflow_provider_dtrain.store.timeline.notes import note
from airflow_provider_dtrain.store.views import (
    trial_view,
    trial_views,
)


class Trials:
    """Submission of trials, and their views."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def submit(self, conn: Connection, submission: TrialSubmission) -> Ticket:
        """Submit a trial: write its experiment, the trial, a waiting request and the first attempt.

        The same key and index return the first ticket again.

        :raises NotFoundError: pool, configuration or payload do not exist
        :raises UserError: slots or priority are out of range
        :raises UnplaceableError: the pool can never serve it; nothing is written
        """
        return self._submit(conn, submission)

    @writes
    def submit_several(self, conn: Connection, submissions: Sequence[TrialSubmission]) -> Sequence[Ticket]:
        """Submit the trials of one task, all or none. Raises like :meth:`submit`."""
        return [self._submit(conn, submission) for submission in submissions]

    def _submit(self, conn: Connection, submission: TrialSubmission) -> Ticket:
        if (ticket := submitted(conn, submission)) is not None:
            return ticket
        _check(conn, submission)
        pool = lock_pool(conn, submission.pool)
        # Read again: on PostgreSQL another caller may have submitted it while this one waited for the lock.
        if (ticket := submitted(conn, submission)) is not None:
            return ticket
        _refuse_unplaceable(conn, submission, pool)
        now = self.db.now()
        experiment = experiment_of(conn, now, submission)
        is_handed_over = hands_over(conn, submission)
        trial_id = insert_trial(conn, now, submission, experiment)
        allocation_id = _request(
            conn, now, submission, trial_id, pool.backend, is_paused=experiment.control_request == "pause"
        )
        attempt_id = _inserted(
            conn,
            attempts,
            trial_id=trial_id,
            number=1,
            allocation_id=allocation_id,
            state="waiting",
            watcher=HANDED_OVER if is_handed_over else None,
            created_at=now,
            renewed_at=now,
        )
        bump(conn, submission.pool)
        _clear_older(conn, now, submission, trial_id)
        return Ticket(
            experiment_id=experiment.id,
            trial_id=trial_id,
            attempt_id=attempt_id,
            attempt_number=1,
            allocation_id=allocation_id,
            is_new=True,
            is_handed_over=is_handed_over,
        )

    @reads
    def get(self, conn: Connection, trial_id: int) -> TrialView:
        """Return a trial.

        :raises NotFoundError: there is no trial with this id
        """
        found = trial_view(conn, trial_id)
        if found is None:
            raise NotFoundError(f"There is no trial {trial_id}. See: airflow dtrain trials list")
        return found

    @reads
    def list(
        self,
        conn: Connection,
        *,
        experiment_id: int | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        state: TrialState | None = None,
        tags: Sequence[str] = (),
        limit: int | None = 100,
        dags: Dags = None,
    ) -> list[TrialView]:
        """Return trials, newest first. Each argument that is not None narrows the list.

        :param tags: only trials that have all of these
        :param limit: most trials to return; None = all
        :param dags: only trials of these; None = of all
        """
        given = {"experiment_id": experiment_id, "dag_id": dag_id, "run_id": run_id}
        where = [trials.c[name] == value for name, value in given.items() if value is not None]
        where += [] if state is None else [in_states([state])]
        where += has_tags("trial", trials.c.id, tags)
        if dags is not None:
            where.append(trials.c.dag_id.in_(sorted(dags)))
        return trial_views(conn, sa.and_(sa.true(), *where), limit=limit)


def submitted(conn: Connection, submission: TrialSubmission) -> Ticket | None:
    """Return the ticket of a trial that was submitted before, None when it was not.

    Garbage collection may have removed its user code since. The caller has just stored it again.
    """
    ticket = _ticket(conn, submission)
    if ticket is None and submission.keeps_result:
        ticket = _with_result(conn, submission)
    if ticket is not None and submission.payload is not None:
        where = (trials.c.id == ticket.trial_id, trials.c.payload.is_(None))
        conn.execute(trials.update().where(*where).values(payload=submission.payload))
    return ticket


#: Columns of a trial that stay the same when its task is cleared, and all that identify it.
_SAME = ("dag_id", "run_id", "task_id", "map_index", "trial_index")
_KEY = (*_SAME, "max_tries")
_TICKET = (
    trials.c.experiment_id,
    attempts.c.trial_id,
    attempts.c.id.label("attempt_id"),
    attempts.c.number.label("attempt_number"),
    attempts.c.allocation_id,
)
_NEWEST_OF = (
    sa.select(*_TICKET)
    .join(attempts, attempts.c.trial_id == trials.c.id)
    .where(*(trials.c[name] == sa.bindparam(f"of_{name}") for name in _KEY))
    .order_by(attempts.c.number.desc())
    .limit(1)
)
_WITH_RESULT = (
    sa.select(*_TICKET)
    .join(attempts, attempts.c.trial_id == trials.c.id)
    .where(
        *(trials.c[name] == sa.bindparam(f"of_{name}") for name in _SAME),
        trials.c.search_id == sa.bindparam("of_search"),
        trials.c.cleared_at.is_(None),
        in_states(TRIAL_SUCCEEDED),
    )
    .order_by(attempts.c.id.desc())
    .limit(1)
)
_SIBLING = (
    sa.select(trials.c.id)
    .where(*(trials.c[name] == sa.bindparam(f"of_{name}") for name in ("dag_id", "run_id", "task_id", "max_tries")))
    .limit(1)
)
_CONFIG = sa.select(configs.c.config_id).where(configs.c.config_id == sa.bindparam("config"))
_SEARCH = sa.select(searches.c.id).where(searches.c.id == sa.bindparam("search"))
_PAYLOAD = sa.select(payloads.c.digest).where(payloads.c.digest == sa.bindparam("of_digest"))
_CLEAR = (
    trials.update()
    .where(
        *(trials.c[name] == sa.bindparam(f"of_{name}") for name in _SAME),
        trials.c.search_id.is_not_distinct_from(sa.bindparam("of_search")),
        trials.c.cleared_at.is_(None),
        trials.c.id != sa.bindparam("newest"),
    )
    .values(cleared_at=sa.bindparam("now"))
    .returning(trials.c.id)
)

_DRAWN = (
    sa.select(trials.c.hparams, trials.c.draw)
    .where(
        *(trials.c[name] == sa.bindparam(f"of_{name}") for name in _SAME),
        trials.c.search_id == sa.bindparam("of_search"),
        trials.c.is_drawn,
    )
    .order_by(trials.c.id.desc())
    .limit(1)
)


def _sample(conn: Connection, submission: TrialSubmission) -> Values:
    """Return the sample of a new trial: the submitted one, else its task's from before it was cleared."""
    if submission.hparams is not None or submission.search_id is None:
        return {"hparams": dict(submission.hparams or {}), "is_drawn": submission.hparams is not None}
    former = statements.first(conn, _DRAWN, {**_identity(submission), "of_search": submission.search_id})
    if former is None:
        return {"hparams": {}, "is_drawn": False}
    return {"hparams": former.hparams, "draw": former.draw, "is_drawn": True}


def _identity(submission: TrialSubmission) -> Values:
    """Return the values of the columns that stay the same when the task of a trial is cleared."""
    of = {**vars(submission.key), "trial_index": submission.trial_index}
    return {f"of_{name}": of[name] for name in _SAME}


def _ticket(conn: Connection, submission: TrialSubmission) -> Ticket | None:
    of = {**_identity(submission), "of_max_tries": submission.key.max_tries}
    row = statements.first(conn, _NEWEST_OF, of)
    return None if row is None else record_of(Ticket, row, is_new=False, is_handed_over=False)


def _with_result(conn: Connection, submission: TrialSubmission) -> Ticket | None:
    """Return the ticket of the trial that has a result from before its task was cleared."""
    row = statements.first(conn, _WITH_RESULT, {**_identity(submission), "of_search": submission.search_id})
    return None if row is None else record_of(Ticket, row, is_new=False, is_handed_over=False)


def _check(conn: Connection, submission: TrialSubmission) -> None:
    if submission.slots < 0 or not 1 <= submission.priority <= 99:
        raise UserError(
            "slots must be 0 or more and priority 1 to 99, got "
            f"{submission.slots} slots at priority {submission.priority}."
        )
    if statements.first(conn, _CONFIG, {"config": submission.config_id}) is None:
        raise NotFoundError(f"The store has no configuration {submission.config_id}.")
    if submission.search_id is not None and statements.first(conn, _SEARCH, {"search": submission.search_id}) is None:
        raise NotFoundError(f"The store has no search {submission.search_id}.")
    if submission.payload is not None and statements.first(conn, _PAYLOAD, {"of_digest": submission.payload}) is None:
        raise NotFoundError(f"The store has no payload {submission.payload}. Store it before the trial.")


def _refuse_unplaceable(conn: Connection, submission: TrialSubmission, pool: PoolRow) -> None:
    if submission.on_unplaceable == "wait":
        return
    if (reason := never_reason(conn, pool, submission)) is not None:
        raise UnplaceableError(reason)


def _inserted(conn: Connection, table: sa.Table, **values: Any) -> int:
    return statements.insert(conn, table, **values)


def hands_over(conn: Connection, submission: TrialSubmission) -> bool:
    """Return whether the submitting worker leaves a new trial to a triggerer.

    Call it before the trial is inserted, with the experiment's row locked.
    """
    if submission.hand_over is not HandOver.ALL_BUT_FIRST:
        return submission.hand_over is HandOver.YES
    of = {f"of_{name}": value for name, value in vars(submission.key).items() if name != "map_index"}
    return statements.first(conn, _SIBLING, of) is not None


def experiment_of(conn: Connection, now: datetime, submission: TrialSubmission) -> ExperimentRow:
    """Return the locked row of a submission's experiment, which is created or runs again."""
    return open_experiment(conn, now, submission)


def insert_trial(conn: Connection, now: datetime, submission: TrialSubmission, experiment: ExperimentRow) -> int:
    """Insert the trial of a submission and return its id.

    :param experiment: row of its experiment, whose control request applies to the trial
    """
    values = {**columns_of(submission, trials), **vars(submission.key), **_sample(conn, submission)}
    # The column of the code is emptied when the code is removed.
    values["source"] = {**submission.source, "code": submission.payload}
    request = experiment.control_request
    requested: Values = {}
    if request is not None:
        requested = {f"{request}_requested_at": now, f"{request}_requested_by": experiment.requested_by}
    trial_id = _inserted(
        conn,
        trials,
        **values,
        **requested,
        experiment_id=experiment.id,
        state="paused" if request == "pause" else "queued",
        created_at=now,
    )
    if request == "pause":
        note(conn, trial_id, TimelineKind.PAUSED, now, by=experiment.requested_by)
    return trial_id


def _clear_older(conn: Connection, now: datetime, submission: TrialSubmission, trial_id: int) -> None:
    asked = {**_identity(submission), "of_search": submission.search_id, "newest": trial_id, "now": now}
    older = [row.id for row in statements.rows(conn, _CLEAR, asked)]
    if older and submission.search_id is not None:
        leave(conn, submission.search_id, older, now)


def _request(
    conn: Connection, now: datetime, submission: TrialSubmission, trial_id: int, backend: str, *, is_paused: bool
) -> int:
    reason = None
    if is_paused:
        reason = paused_by(conn, conn.execute(sa.select(trials).where(trials.c.id == trial_id)).one())
    allocation_id = _inserted(
        conn,
        allocations,
        **columns_of(submission, allocations),
        trial_id=trial_id,
        backend=backend,
        state="waiting",
        submitted_at=now,
        requested_at=now,
        renewed_at=now,
        eligible_since=now if reason is None else None,
        paused=reason is not None,
        reason=reason or "",
    )
    statements.update(conn, allocations, allocation_id, sequence=allocation_id)
    return allocation_id


def ticket_of(conn: Connection, attempt_id: int) -> Ticket:
    """Return the ticket of an attempt."""
    query: sa.Select[Any] = sa.select(*_TICKET).join(trials, trials.c.id == attempts.c.trial_id)
    row = conn.execute(query.where(attempts.c.id == attempt_id)).one()
    return record_of(Ticket, row, is_new=False, is_handed_over=False)
