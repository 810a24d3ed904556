"""Searches: plans of an experiment's trials, their history and their end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_SUCCEEDED, ExperimentState
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, UserError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import SearchRow, TaskKeyRow, columns_of, record_of
from airflow_provider_dtrain.store.database.statements import Values
from airflow_provider_dtrain.store.database.tables import attempts, configs, experiments, rung_entries, searches, trials
from airflow_provider_dtrain.store.database.transactions import Database, guard, reads, writes
from airflow_provider_dtrain.store.queue.transitions import experiment_end, open_experiment
from airflow_provider_dtrain.store.records.searches import (
    HistoryRow,
    RungEntry,
    SearchEnd,
    SearchSubmission,
    SearchView,
)
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialView
from airflow_provider_dtrain.store.rungs import clear_reports
from airflow_provider_dtrain.store.views import key_of, trial_views

_COUNTED = sa.select(trials.c.state, sa.func.count().label("all")).group_by(trials.c.state)
_NOTHING_STARTED = {"error": "UserError", "kind": "user", "message": "No trial of the experiment was started."}

_KILLED = {"error": "TrialKilledError", "kind": "user"}


class Searches:
    """Searches of experiments: creation, results and end."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def create(self, conn: Connection, submission: SearchSubmission) -> SearchView:
        """Create an experiment and its search. The same key returns the first search again.

        The same task with another ``max_tries`` was cleared. It gets the next generation of the experiment, with
        empty rungs and the seed of the first generation. Control requests to the older generation are dropped.

        :raises ConflictError: another task of the DAG run has an experiment of this name
        :raises NotFoundError: the configuration does not exist
        :raises UserError: a number is out of range
        """
        if (found := _search_view(conn, _is_key(submission.key))) is not None:
            return found
        _check(conn, submission)
        key = submission.key
        experiment = open_experiment(conn, self.db.now(), submission)
        # Read again: another caller may have created it while this one waited for the experiment's lock.
        if (found := _search_view(conn, _is_key(key))) is not None:
            return found
        of_experiment = sa.select(searches).where(searches.c.experiment_id == experiment.id)
        former = conn.execute(of_experiment.order_by(searches.c.generation.desc())).first()
        if former is not None and (former.task_id, former.map_index) != (key.task_id, key.map_index):
            raise _taken(submission.experiment_name, key, former)
        query = searches.insert().values(**self._values(submission, former), experiment_id=experiment.id)
        search_id = conn.scalar(query.returning(searches.c.id))
        again = {"control_request": None, "requested_by": None}
        conn.execute(experiments.update().where(experiments.c.id == experiment.id).values(**again))
        return _require(_search_view(conn, searches.c.id == search_id), int(search_id or 0))

    def _values(self, submission: SearchSubmission, former: SearchRow | None) -> Values:
        keeps = former is not None and not submission.is_seed_given
        return {
            **columns_of(submission, searches),
            **vars(submission.key),
            "created_at": self.db.now(),
            "generation": 1 if former is None else former.generation + 1,
            "seed": former.seed if former is not None and keeps else submission.seed,
            "rungs": {str(bracket): list(units) for bracket, units in submission.rungs.items()},
        }

    @reads
    def get(self, conn: Connection, search_id: int) -> SearchView:
        """Return a search.

        :raises NotFoundError: there is no search with this id
        """
        row = statements.first(conn, _SEARCH, {"search": search_id})
        return _require(None if row is None else _as_view(row), search_id)

    @reads
    def of_trial(self, conn: Connection, trial_id: int) -> SearchView | None:
        """Return the search that planned a trial, None for a trial without one."""
        own = sa.select(trials.c.search_id).where(trials.c.id == trial_id).scalar_subquery()
        return _search_view(conn, searches.c.id == own)

    @reads
    def decisions(self, conn: Connection, trial_id: int) -> list[RungEntry]:
        """Return the decisions on a trial, lowest rung first."""
        return _as_entries(statements.rows(conn, _DECISIONS, {"trial": trial_id}))

    @reads
    def rung_entries(self, conn: Connection, search_id: int) -> list[RungEntry]:
        """Return all entries of a search by bracket and rung, best first.

        Entries of failed and cleared trials are included. Equal entries come in the order in which they were written.
        """
        return _as_entries(conn.execute(_ENTRIES.where(rung_entries.c.search_id == search_id)))

    @writes
    def set_hparams(self, conn: Connection, attempt_id: int, watch: int, hparams: Mapping[str, Any], draw: int) -> None:
        """Store the hyperparameters that were sampled for a trial.

        A trial with a second or later sample starts from scratch: reports with the refused samples no longer count.

        :param draw: index of the sample among those drawn for the trial's number, from 0
        :raises StaleWatchError: the watch is not current
        """
        attempt = guard(conn, attempt_id, watch)
        values = {"hparams": dict(hparams), "draw": draw, "is_drawn": True}
        own = trials.update().where(trials.c.id == attempt.trial_id).values(**values)
        search_id = conn.scalar(own.returning(trials.c.search_id))
        if draw:
            clear_reports(conn, attempt.trial_id, search_id)

    @reads
    def history(self, conn: Connection, search_id: int) -> list[HistoryRow]:
        """Return the trials of a search by number, without trials that were cleared."""
        highest = sa.select(sa.func.max(rung_entries.c.units)).where(
            rung_entries.c.trial_id == trials.c.id, sa.not_(rung_entries.c.is_error)
        )
        query: sa.Select[Any] = sa.select(
            trials.c.id.label("trial_id"),
            trials.c.number,
            trials.c.hparams,
            trials.c.is_drawn,
            trials.c.state,
            trials.c.best_metric.label("metric"),
            sa.func.coalesce(highest.scalar_subquery(), 0).label("units"),
        )
        query = query.where(trials.c.search_id == search_id, trials.c.cleared_at.is_(None))
        return [record_of(HistoryRow, row) for row in conn.execute(query.order_by(trials.c.number, trials.c.id))]

    @reads
    def best_trial(self, conn: Connection, search_id: int) -> TrialView | None:
        """Return the trial with the best metric among those that completed or were stopped.

        The metric is the searcher's. Among equal trials the one with the smallest number is returned, and None when
        no trial qualifies.

        :raises NotFoundError: there is no such search
        """
        smaller = conn.scalar(sa.select(searches.c.smaller_is_better).where(searches.c.id == search_id))
        if smaller is None:
            raise _no_search(search_id)
        best = trials.c.best_metric.asc() if smaller else trials.c.best_metric.desc()
        where = (trials.c.search_id == search_id, trials.c.cleared_at.is_(None), trials.c.state.in_(TRIAL_SUCCEEDED))
        query = sa.select(trials.c.id).where(*where, trials.c.best_metric.is_not(None))
        found = conn.scalar(query.order_by(best, trials.c.number, trials.c.id).limit(1))
        return None if found is None else trial_views(conn, trials.c.id == found)[0]

    @reads
    def best_metric_of(
        self, conn: Connection, name: str, smaller_is_better: bool, *, before_search_id: int
    ) -> float | None:
        """Return the best metric of all earlier searches in experiments of a name, None without one.

        Earlier searches are all ended searches by the same metric, of any DAG, except ``before_search_id``.
        """
        metric = sa.select(searches.c.metric).where(searches.c.id == before_search_id).scalar_subquery()
        best = sa.func.min(trials.c.best_metric) if smaller_is_better else sa.func.max(trials.c.best_metric)
        query = (
            sa.select(best)
            .select_from(
                trials.join(searches, searches.c.id == trials.c.search_id).join(
                    experiments, experiments.c.id == searches.c.experiment_id
                )
            )
            .where(experiments.c.name == name, searches.c.id != before_search_id, searches.c.ended_at.is_not(None))
            .where(searches.c.metric == metric, searches.c.smaller_is_better == smaller_is_better)
            .where(trials.c.cleared_at.is_(None), trials.c.state.in_(TRIAL_SUCCEEDED))
        )
        found = conn.scalar(query)
        return None if found is None else float(found)

    @writes
    def announce_best(self, conn: Connection, search_id: int, key: TrialKey, metric: float) -> float | None:
        """Record that a task announces the best trial of a search as a new best.

        Return None when it is a new best. Otherwise return the metric, at least as good, that another task or this one
        before it was cleared has announced. A retried task announces again, because its previous worker may have died
        before the announcement.

        :param key: of the task that announces
        :raises NotFoundError: there is no such search
        """
        query = sa.select(searches.c.announced, searches.c.smaller_is_better).where(searches.c.id == search_id)
        search = conn.execute(query.with_for_update(key_share=True)).one_or_none()
        if search is None:
            raise _no_search(search_id)
        by = list(vars(key).values())
        former = search.announced
        if former is not None and former["by"] != by:
            former_metric = former["metric"]
            sign = 1 if search.smaller_is_better else -1
            if sign * metric >= sign * former_metric:
                return float(former_metric)
        values = {"announced": {"metric": metric, "by": by}}
        conn.execute(searches.update().where(searches.c.id == search_id).values(**values))
        return None

    @writes
    def end(self, conn: Connection, search_id: int) -> SearchEnd:
        """End a search and, if it is the newest generation, its experiment. Return the outcome. Repeatable.

        An experiment also ends by itself with the last of its ``max_trials`` trials. This method ends it even if some
        trials were never submitted, because no task is left that could submit them.

        :raises NotFoundError: there is no such search
        """
        of = conn.scalar(sa.select(searches.c.experiment_id).where(searches.c.id == search_id))
        if of is None:
            raise _no_search(search_id)
        now = self.db.now()
        locked = sa.select(experiments.c.control_request, experiments.c.requested_by).where(experiments.c.id == of)
        experiment = conn.execute(locked.with_for_update()).one()
        is_open = (searches.c.id == search_id, searches.c.ended_at.is_(None))
        conn.execute(searches.update().where(*is_open).values(ended_at=now))
        own = (trials.c.search_id == search_id, trials.c.cleared_at.is_(None))
        counted = conn.execute(_COUNTED.where(*own))
        counts: dict[str, int] = {row.state: row.all for row in counted}
        state = experiment_end(counts, experiment.control_request) or ExperimentState.ERRORED
        newest = sa.select(sa.func.max(searches.c.id)).where(searches.c.experiment_id == of).scalar_subquery()
        where = (experiments.c.id == of, newest == search_id)
        # The task that calls this runs after the last trial, and again whenever it is cleared.
        ended_at = sa.func.coalesce(experiments.c.ended_at, now)
        conn.execute(experiments.update().where(*where).values(state=state, ended_at=ended_at))
        if state == "completed":
            return SearchEnd(state=state, failure=None, failed_trial_id=None, trials=counts)
        if state == "killed" and experiment.control_request == "kill":
            killed = {**_KILLED, "message": f"The experiment was killed by {experiment.requested_by}."}
            return SearchEnd(state=state, failure=killed, failed_trial_id=None, trials=counts)
        first = sa.select(trials.c.id, trials.c.failure).where(*own, trials.c.failure.is_not(None))
        row = conn.execute(first.order_by(trials.c.ended_at, trials.c.id).limit(1)).one_or_none()
        failure = _NOTHING_STARTED if row is None and not counts else getattr(row, "failure", None)
        return SearchEnd(state=state, failure=failure, failed_trial_id=getattr(row, "id", None), trials=counts)


def _is_key(key: TrialKey) -> sa.ColumnElement[bool]:
    return sa.and_(*(searches.c[name] == value for name, value in vars(key).items()))


_SEARCHES: sa.Select[Any] = sa.select(searches, experiments.c.name.label("experiment")).join(
    experiments, experiments.c.id == searches.c.experiment_id
)
_SEARCH = _SEARCHES.where(searches.c.id == sa.bindparam("search"))


def _search_view(conn: Connection, where: sa.ColumnElement[bool]) -> SearchView | None:
    row = conn.execute(_SEARCHES.where(where)).one_or_none()
    return None if row is None else _as_view(row)


def _as_view(row: Row[Any]) -> SearchView:
    rungs = {int(bracket): tuple(units) for bracket, units in row.rungs.items()}
    return record_of(SearchView, row, search_id=row.id, key=key_of(row), rungs=rungs)


def _require(found: SearchView | None, search_id: int) -> SearchView:
    if found is None:
        raise _no_search(search_id)
    return found


def _no_search(search_id: int) -> NotFoundError:
    return NotFoundError(f"There is no search {search_id}. See: airflow dtrain experiments list")


_ENTRIES: sa.Select[Any] = (
    sa.select(rung_entries, trials.c.number.label("trial_number"), attempts.c.number.label("attempt"))
    .select_from(
        rung_entries.join(trials, trials.c.id == rung_entries.c.trial_id).join(
            attempts, attempts.c.id == rung_entries.c.attempt_id
        )
    )
    .order_by(rung_entries.c.bracket, rung_entries.c.rung, rung_entries.c.rank_value, rung_entries.c.id)
)
_DECISIONS = _ENTRIES.where(rung_entries.c.trial_id == sa.bindparam("trial"), rung_entries.c.decision.is_not(None))


def _as_entries(rows: Iterable[Row[Any]]) -> list[RungEntry]:
    return [record_of(RungEntry, row, has_left=row.left_at is not None) for row in rows]


def _check(conn: Connection, submission: SearchSubmission) -> None:
    if submission.max_trials < 1 or submission.max_concurrent_trials < 0 or submission.divisor < 2:
        raise UserError(
            "max_trials must be at least 1, max_concurrent_trials at least 0 (no cap) and divisor at least 2, got "
            f"{submission.max_trials}, {submission.max_concurrent_trials} and {submission.divisor}."
        )
    if conn.scalar(sa.select(configs.c.config_id).where(configs.c.config_id == submission.config_id)) is None:
        raise NotFoundError(f"The store has no configuration {submission.config_id}.")


def _taken(name: str, key: TrialKey, other: TaskKeyRow) -> ConflictError:
    index = "" if other.map_index < 0 else f" (map index {other.map_index})"
    return ConflictError(
        f"Task '{key.task_id}' and task '{other.task_id}'{index} of DAG run '{key.run_id}' both plan an experiment "
        f"'{name}'. Names must be unique in a DAG run. Set `name` in one of their configurations."
    )
