"""Experiments, trials and their submission."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.scheduling.model import GangRequest, TrialState, Unplaceable
from airflow_provider_dtrain.core.scheduling.placement import place
from airflow_provider_dtrain.errors import NotFoundError, UnplaceableError, UserError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.statements import Statement
from airflow_provider_dtrain.store.database.tables import (
    allocations,
    attempts,
    configs,
    experiments,
    payloads,
    searches,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import bump, lock_pool, reads, writes
from airflow_provider_dtrain.store.held_gangs import gang_rows, gang_words
from airflow_provider_dtrain.store.pools import options_of
from airflow_provider_dtrain.store.queue.accounting import paused_by
from airflow_provider_dtrain.store.queue.requests import pool_machines
from airflow_provider_dtrain.store.queue.transitions import Ending
from airflow_provider_dtrain.store.records.trials import (
    AttemptView,
    TaskView,
    Ticket,
    TrialKey,
    TrialSubmission,
    TrialView,
)
from airflow_provider_dtrain.store.rungs import leave
from airflow_provider_dtrain.store.views import (
    JOINED,
    attempt_view,
    attempt_views,
    heard_at,
    key_of,
    placements,
    trial_view,
    trial_views,
    waits_because,
)


class Trials(Ending):
    """Submission of trials, and views of trials and attempts."""

    @writes
    def submit_trial(self, conn: Connection, submission: TrialSubmission) -> Ticket:
        """Submit a trial: write its experiment, the trial, a waiting request and the first attempt.

        The same key returns the first ticket again.

        :raises NotFoundError: pool, configuration or payload do not exist
        :raises UserError: slots or priority are out of range
        :raises UnplaceableError: the pool can never serve it; nothing is written
        """
        if (ticket := submitted(conn, submission)) is not None:
            return ticket
        _check(conn, submission)
        pool = lock_pool(conn, submission.pool)
        # Read again: on PostgreSQL another caller may have submitted it while this one waited for the lock.
        if (ticket := submitted(conn, submission)) is not None:
            return ticket
        _refuse_unplaceable(conn, submission, pool)
        experiment = self._experiment(conn, submission)
        trial_id = self._trial(conn, submission, experiment)
        allocation_id = self._request(conn, submission, trial_id, is_paused=experiment.wish == "pause")
        attempt_id = _inserted(
            conn, attempts, trial_id=trial_id, number=1, allocation_id=allocation_id, state="waiting",
            created_at=self._now(), renewed_at=self._now(),
        )  # fmt: skip
        bump(conn, submission.pool)
        self._clear_older(conn, submission, trial_id)
        return Ticket(
            experiment_id=experiment.id, trial_id=trial_id, attempt_id=attempt_id, attempt_number=1,
            allocation_id=allocation_id, is_new=True,
        )  # fmt: skip

    def _experiment(self, conn: Connection, submission: TrialSubmission) -> Row[Any]:
        of = submission
        return self._open_experiment(conn, of.key, of.experiment_name, of.weight, of.max_slots)

    def _trial(self, conn: Connection, submission: TrialSubmission, experiment: Row[Any]) -> int:
        names = ("number", "config_id", "payload", "seed", "max_restarts", "search_id", "bracket")
        values = {name: getattr(submission, name) for name in names}
        values.update(_sample(conn, submission))
        key, wish = submission.key, experiment.wish
        wished: dict[str, Any] = {}
        if wish is not None:
            wished = {f"{wish}_requested_at": self._now(), f"{wish}_requested_by": experiment.wished_by}
        return _inserted(
            conn, trials, **values, **wished, experiment_id=experiment.id, dag_id=key.dag_id, run_id=key.run_id,
            task_id=key.task_id, map_index=key.map_index, max_tries=key.max_tries,
            state="paused" if wish == "pause" else "queued", created_at=self._now(),
        )  # fmt: skip

    def _clear_older(self, conn: Connection, submission: TrialSubmission, trial_id: int) -> None:
        """Mark older trials of the same task instance in this search as cleared."""
        of, now = {f"of_{name}": getattr(submission.key, name) for name in _TASK}, self._now()
        asked = {**of, "of_search": submission.search_id, "newest": trial_id, "now": now}
        older = [row.id for row in statements.rows(conn, _CLEAR, asked)]
        if older and submission.search_id is not None:
            leave(conn, submission.search_id, older, now)

    def _request(self, conn: Connection, submission: TrialSubmission, trial_id: int, *, is_paused: bool) -> int:
        reason = None
        if is_paused:
            reason = paused_by(conn, conn.execute(sa.select(trials).where(trials.c.id == trial_id)).one())
        names = ("pool", "slots", "priority", "is_single_host", "on_unplaceable", "max_runtime_s", "preemptible")
        values = {name: getattr(submission, name) for name in names}
        now = self._now()
        allocation_id = _inserted(
            conn, allocations, **values, trial_id=trial_id, state="waiting", submitted_at=now, renewed_at=now,
            eligible_since=now if reason is None else None, paused=reason is not None, reason=reason or "",
        )  # fmt: skip
        statements.update(conn, allocations, allocation_id, sequence=allocation_id)
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
        """Return an attempt with all state that a follower needs to continue it.

        :raises NotFoundError: there is no attempt with this id
        """
        found = attempt_view(conn, attempt_id)
        if found is None:
            raise NotFoundError(f"There is no attempt {attempt_id}.")
        return found

    @reads
    def trial(self, conn: Connection, trial_id: int) -> TrialView:
        """Return a trial.

        :raises NotFoundError: there is no trial with this id
        """
        found = trial_view(conn, trial_id)
        if found is None:
            raise NotFoundError(f"There is no trial {trial_id}. See: airflow dtrain trials list")
        return found

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
        """Return trials, newest first. Each argument that is not None narrows the list.

        :param limit: most trials to return; None = all
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
                attempts.c.reason.label("attempt_reason"), attempts.c.state.label("attempt_state"),
                attempts.c.renewed_at.label("followed_at"), trials.c.number.label("trial_number"),
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
            place_of, reason = None, row.attempt_reason
            if row.state == "waiting":
                waiting[row.pool] = waiting.get(row.pool, 0) + 1
                place_of = row.position or waiting[row.pool]
                reason = waits_because(conn, row.id, row.reason, row.renewed_at, row)
            hosts_of = {host: found[0] for host, found in placed.get(row.id, {}).items()}
            views.append(_task_view(row, hosts_of, place_of, reason))
        return views


def _in_queue_order(row: Row[Any]) -> tuple[Any, ...]:
    place = row.position if row.state == "waiting" and row.position is not None else 0
    return row.pool, row.priority, place, row.sequence


def _task_view(row: Row[Any], placement: dict[str, tuple[int, ...]], place_of: int | None, reason: str) -> TaskView:
    waits = place_of is not None
    gang = gang_words(row.dag_id, row.task_id) if row.experiment is None else None
    return TaskView(
        allocation_id=row.id, attempt_id=row.attempt_id, attempt_number=row.attempt_number, trial_id=row.trial_id,
        trial_number=row.trial_number, experiment_id=row.experiment_id, experiment=gang or row.experiment,
        key=key_of(row),
        pool=row.pool, priority=row.priority, slots=row.slots, placement=placement, state=row.state,
        reason=reason, position=place_of,
        since=row.submitted_at if waits else row.granted_at, expected=row.expected if waits else "", paused=row.paused,
        heard_at=heard_at("waiting" if waits else row.attempt_state, row.followed_at, row.renewed_at),
    )  # fmt: skip


def submitted(conn: Connection, submission: TrialSubmission) -> Ticket | None:
    """Return the ticket of a trial that was submitted before, None when it was not.

    Garbage collection may have removed its user code since. The caller has just stored it again.
    """
    ticket = _ticket(conn, submission.key)
    if ticket is not None and submission.payload is not None:
        where = (trials.c.id == ticket.trial_id, trials.c.payload.is_(None))
        conn.execute(trials.update().where(*where).values(payload=submission.payload))
    return ticket


_TASK = ("dag_id", "run_id", "task_id", "map_index")
_KEY = (*_TASK, "max_tries")
_NEWEST_OF = Statement(
    sa.select(trials.c.experiment_id, attempts.c.trial_id, attempts.c.id, attempts.c.number, attempts.c.allocation_id)
    .join(attempts, attempts.c.trial_id == trials.c.id)
    .where(*(trials.c[name] == sa.bindparam(f"of_{name}") for name in _KEY))
    .order_by(attempts.c.number.desc())
    .limit(1)
)
_CONFIG = Statement(sa.select(configs.c.config_id).where(configs.c.config_id == sa.bindparam("config")))
_SEARCH = Statement(sa.select(searches.c.id).where(searches.c.id == sa.bindparam("search")))
_PAYLOAD = Statement(sa.select(payloads.c.digest).where(payloads.c.digest == sa.bindparam("of_digest")))
_CLEAR = Statement(
    trials.update()
    .where(
        *(trials.c[name] == sa.bindparam(f"of_{name}") for name in _TASK),
        trials.c.search_id.is_not_distinct_from(sa.bindparam("of_search")),
        trials.c.cleared_at.is_(None),
        trials.c.id != sa.bindparam("newest"),
    )
    .values(cleared_at=sa.bindparam("now"))
    .returning(trials.c.id)
)

_DRAWN = Statement(
    sa.select(trials.c.hparams, trials.c.draw)
    .where(
        *(trials.c[name] == sa.bindparam(f"of_{name}") for name in _TASK),
        trials.c.search_id == sa.bindparam("of_search"),
        trials.c.is_drawn,
    )
    .order_by(trials.c.id.desc())
    .limit(1)
)


def _sample(conn: Connection, submission: TrialSubmission) -> dict[str, Any]:
    """Return the sample of a new trial: the submitted one, else its task's from before it was cleared."""
    if submission.hparams is not None or submission.search_id is None:
        return {"hparams": dict(submission.hparams or {}), "is_drawn": submission.hparams is not None}
    of = {f"of_{name}": getattr(submission.key, name) for name in _TASK}
    former = statements.first(conn, _DRAWN, {**of, "of_search": submission.search_id})
    if former is None:
        return {"hparams": {}, "is_drawn": False}
    return {"hparams": former.hparams, "draw": former.draw, "is_drawn": True}


def _ticket(conn: Connection, key: TrialKey) -> Ticket | None:
    row = statements.first(conn, _NEWEST_OF, {f"of_{name}": getattr(key, name) for name in _KEY})
    if row is None:
        return None
    return Ticket(
        experiment_id=row.experiment_id, trial_id=row.trial_id, attempt_id=row.id, attempt_number=row.number,
        allocation_id=row.allocation_id,
    )  # fmt: skip


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
    return statements.insert(conn, table, **values)
