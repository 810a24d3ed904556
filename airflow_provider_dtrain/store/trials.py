"""Experiments, trials and their submission."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.placement import place
from airflow_provider_dtrain.core.resources import GangRequest, TrialState, Unplaceable
from airflow_provider_dtrain.errors import NotFoundError, UnplaceableError, UserError
from airflow_provider_dtrain.store.base import bump, lock_pool, reads, writes
from airflow_provider_dtrain.store.ending import Ending
from airflow_provider_dtrain.store.held import gang_rows, gang_words
from airflow_provider_dtrain.store.pools import options_of
from airflow_provider_dtrain.store.queue import pool_machines
from airflow_provider_dtrain.store.records import AttemptView, TaskView, Ticket, TrialKey, TrialSubmission, TrialView
from airflow_provider_dtrain.store.tables import (
    allocations,
    attempts,
    configs,
    experiments,
    payloads,
    trials,
)
from airflow_provider_dtrain.store.views import JOINED, attempt_views, key_of, placements, trial_views


class Trials(Ending):
    """What was asked for, and what became of it."""

    @writes
    def submit_trial(self, conn: Connection, submission: TrialSubmission) -> Ticket:
        """Write experiment, trial, waiting request and first attempt; the same key gives the first ticket again.

        :raises NotFoundError: pool, configuration or payload do not exist
        :raises UserError: slots or priority are out of range
        :raises UnplaceableError: the pool can never serve it; nothing is written
        """
        if (ticket := _ticket(conn, submission.key)) is not None:
            return ticket
        _check(conn, submission)
        pool = lock_pool(conn, submission.pool)
        # Looked at again: on PostgreSQL another caller may have come first while we waited for the lock.
        if (ticket := _ticket(conn, submission.key)) is not None:
            return ticket
        _refuse_unplaceable(conn, submission, pool)
        experiment_id = self._experiment(conn, submission)
        trial_id = self._trial(conn, submission, experiment_id)
        allocation_id = self._request(conn, submission, trial_id)
        attempt_id = _inserted(
            conn, attempts, trial_id=trial_id, number=1, allocation_id=allocation_id, state="waiting",
            created_at=self._now(), renewed_at=self._now(),
        )  # fmt: skip
        bump(conn, submission.pool)
        return Ticket(
            experiment_id=experiment_id, trial_id=trial_id, attempt_id=attempt_id, attempt_number=1,
            allocation_id=allocation_id,
        )  # fmt: skip

    def _experiment(self, conn: Connection, submission: TrialSubmission) -> int:
        key = submission.key
        values = {"dag_id": key.dag_id, "run_id": key.run_id, "name": submission.experiment_name}
        share = {"weight": submission.weight, "max_slots": submission.max_slots}
        insert = self._insert(experiments).values(**values, **share, state="running", created_at=self._now())
        conn.execute(insert.on_conflict_do_nothing(index_elements=list(values)))
        where = [experiments.c[name] == value for name, value in values.items()]
        row = conn.execute(sa.select(experiments).where(*where).with_for_update()).one()
        if row.state != "running":
            again = {"state": "running", "ended_at": None}
            conn.execute(experiments.update().where(experiments.c.id == row.id).values(**again))
        return int(row.id)

    def _trial(self, conn: Connection, submission: TrialSubmission, experiment_id: int) -> int:
        names = ("number", "config_id", "payload", "hparams", "seed", "max_restarts")
        values = {name: getattr(submission, name) for name in names}
        key = submission.key
        return _inserted(
            conn, trials, **values, experiment_id=experiment_id, dag_id=key.dag_id, run_id=key.run_id,
            task_id=key.task_id, map_index=key.map_index, max_tries=key.max_tries, state="queued",
            created_at=self._now(),
        )  # fmt: skip

    def _request(self, conn: Connection, submission: TrialSubmission, trial_id: int) -> int:
        names = ("pool", "slots", "priority", "is_single_host", "on_unplaceable", "max_runtime_s", "preemptible")
        values = {name: getattr(submission, name) for name in names}
        now = self._now()
        allocation_id = _inserted(
            conn, allocations, **values, trial_id=trial_id, state="waiting", submitted_at=now, renewed_at=now,
            eligible_since=now,
        )  # fmt: skip
        own = allocations.c.id == allocation_id
        conn.execute(allocations.update().where(own).values(sequence=allocations.c.id))
        return allocation_id

    @reads
    def older_attempts(self, conn: Connection, key: TrialKey) -> list[AttemptView]:
        """Return live attempts of the same task instance from before it was cleared."""
        same = ("dag_id", "run_id", "task_id", "map_index")
        where = [trials.c[name] == getattr(key, name) for name in same]
        where += [trials.c.max_tries != key.max_tries, attempts.c.ended_at.is_(None)]
        return attempt_views(conn, sa.and_(*where))

    @reads
    def attempt(self, conn: Connection, attempt_id: int) -> AttemptView:
        """Return an attempt with everything needed to carry it on.

        :raises NotFoundError: there is none with this id
        """
        found = attempt_views(conn, attempts.c.id == attempt_id)
        if not found:
            raise NotFoundError(f"There is no attempt {attempt_id}.")
        return found[0]

    @reads
    def trial(self, conn: Connection, trial_id: int) -> TrialView:
        """Return a trial.

        :raises NotFoundError: there is none with this id
        """
        found = trial_views(conn, trials.c.id == trial_id)
        if not found:
            raise NotFoundError(f"There is no trial {trial_id}. See: airflow dtrain trial list")
        return found[0]

    @reads
    def list_trials(
        self,
        conn: Connection,
        *,
        experiment_id: int | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        state: TrialState | None = None,
        limit: int | None = 100,
    ) -> list[TrialView]:
        """Return trials, newest first; each argument that is not None narrows the list.

        :param limit: at most so many; None = all
        """
        given = {"experiment_id": experiment_id, "dag_id": dag_id, "run_id": run_id, "state": state}
        where = [trials.c[name] == value for name, value in given.items() if value is not None]
        return trial_views(conn, sa.and_(sa.true(), *where), limit=limit)

    @reads
    def trial_attempts(self, conn: Connection, trial_id: int) -> list[AttemptView]:
        """Return all attempts of a trial, oldest first."""
        return attempt_views(conn, attempts.c.trial_id == trial_id)

    @reads
    def tasks(self, conn: Connection, pool: str | None = None) -> list[TaskView]:
        """Return every gang that waits or holds slots, in the order of the queue."""
        newest = sa.select(sa.func.max(attempts.c.id)).group_by(attempts.c.allocation_id)
        rows = conn.execute(
            sa.select(
                allocations, attempts.c.id.label("attempt_id"), attempts.c.number.label("attempt_number"),
                attempts.c.reason.label("attempt_reason"), trials.c.number.label("trial_number"),
                trials.c.experiment_id, experiments.c.name.label("experiment"), trials.c.dag_id, trials.c.run_id,
                trials.c.task_id, trials.c.map_index, trials.c.max_tries,
            )
            .select_from(JOINED)
            .where(allocations.c.state != "released", attempts.c.id.in_(newest), allocations.c.trial_id.is_not(None))
            .where(sa.true() if pool is None else allocations.c.pool == pool)
        ).all()  # fmt: skip
        rows = sorted([*rows, *gang_rows(conn, pool)], key=_in_queue_order)
        placed = placements(conn, {row.id: row.token for row in rows if row.token is not None})
        waiting: dict[str, int] = {}
        views = []
        for row in rows:
            place_of = None
            if row.state == "waiting":
                waiting[row.pool] = waiting.get(row.pool, 0) + 1
                place_of = row.position or waiting[row.pool]
            views.append(_task_view(row, {host: found[0] for host, found in placed.get(row.id, {}).items()}, place_of))
        return views


def _in_queue_order(row: Row[Any]) -> tuple[Any, ...]:
    place = row.position if row.state == "waiting" and row.position is not None else 0
    return row.pool, row.priority, place, row.sequence


def _task_view(row: Row[Any], placement: dict[str, tuple[int, ...]], place_of: int | None) -> TaskView:
    waits = place_of is not None
    gang = gang_words(row.dag_id, row.task_id) if row.experiment is None else None
    return TaskView(
        attempt_id=row.attempt_id, attempt_number=row.attempt_number, trial_id=row.trial_id,
        trial_number=row.trial_number, experiment_id=row.experiment_id, experiment=gang or row.experiment,
        key=key_of(row),
        pool=row.pool, priority=row.priority, slots=row.slots, placement=placement, state=row.state,
        reason=row.reason if waits else row.attempt_reason, position=place_of,
        since=row.submitted_at if waits else row.granted_at, expected=row.expected if waits else "", paused=row.paused,
    )  # fmt: skip


def _ticket(conn: Connection, key: TrialKey) -> Ticket | None:
    names = ("dag_id", "run_id", "task_id", "map_index", "max_tries")
    query = (
        sa.select(trials.c.experiment_id, attempts)
        .join(attempts, attempts.c.trial_id == trials.c.id)
        .where(*(trials.c[name] == getattr(key, name) for name in names))
        .order_by(attempts.c.number.desc())
        .limit(1)
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    return Ticket(
        experiment_id=row.experiment_id, trial_id=row.trial_id, attempt_id=row.id, attempt_number=row.number,
        allocation_id=row.allocation_id,
    )  # fmt: skip


def _check(conn: Connection, submission: TrialSubmission) -> None:
    if submission.slots < 0 or not 1 <= submission.priority <= 99:
        raise UserError(f"{submission.slots} slots at priority {submission.priority}: slots >= 0, priority 1 to 99.")
    if conn.scalar(sa.select(configs.c.config_id).where(configs.c.config_id == submission.config_id)) is None:
        raise NotFoundError(f"The store has no configuration {submission.config_id}.")
    if submission.payload is not None:
        known = sa.select(payloads.c.digest).where(payloads.c.digest == submission.payload)
        if conn.scalar(known) is None:
            raise NotFoundError(f"The store has no payload {submission.payload}. Put it before the trial.")


def _refuse_unplaceable(conn: Connection, submission: TrialSubmission, pool: Row[Any]) -> None:
    if submission.on_unplaceable == "wait":
        return
    options = options_of(pool)
    request = GangRequest("new", submission.slots, submission.priority, submission.is_single_host)
    found = place(
        request, pool_machines(conn, submission.pool), allow_heterogeneous=options.allow_heterogeneous, fit=options.fit
    )
    if isinstance(found, Unplaceable) and found.never:
        raise UnplaceableError(found.reason)


def _inserted(conn: Connection, table: sa.Table, **values: Any) -> int:
    return int(conn.scalar(table.insert().values(**values).returning(table.c.id)) or 0)
