"""The table of experiments: filter, order and one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED, TRIAL_SUCCEEDED
from airflow_provider_dtrain.core.search.expected_end import expected_end
from airflow_provider_dtrain.core.search.trial_progress import TrialProgress, mean_share
from airflow_provider_dtrain.store.database.filters import contains, has_tags
from airflow_provider_dtrain.store.database.tables import attempts, experiments, labels, searches, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.experiment_views import (
    BEST_METRIC,
    CANNOT_RUN,
    IS_CURRENT,
    STATE,
    WITH_SEARCH,
    best_trial,
    experiment_views,
    reasons_of_stuck,
)
from airflow_provider_dtrain.store.labels import labels_of
from airflow_provider_dtrain.store.pages.experiment_version import RunningProgress, experiments_version
from airflow_provider_dtrain.store.places import in_place
from airflow_provider_dtrain.store.records.pages import (
    ExperimentEntry,
    ExperimentOrder,
    ExperimentPlan,
    ExperimentQuery,
    Labels,
    PageVersion,
)
from airflow_provider_dtrain.store.records.searches import ExperimentView

#: Latest ended trials from which the durations of the next ones are estimated.
SAMPLE = 50


class ExperimentTable:
    """Experiments in pages."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._progress = RunningProgress()

    @reads
    def version(self, conn: Connection) -> PageVersion:
        """Return a value that changes whenever a fact of the table changes, expected ends excepted.

        The expected end of running trials moves with time alone. Their progress counts in steps of a thousandth.
        """
        return experiments_version(conn, self._progress.read(conn, self.db.now()))

    @reads
    def page(self, conn: Connection, query: ExperimentQuery) -> tuple[list[ExperimentEntry], int]:
        """Return one page of the matching experiments, and the number of all that match."""
        where = sa.and_(sa.true(), *_matching(query))
        if query.sort == "progress":
            return self._by_progress(conn, query, where)
        total = int(conn.scalar(sa.select(sa.func.count()).select_from(WITH_SEARCH).where(where)) or 0)
        views = experiment_views(conn, where, limit=query.limit, offset=query.offset, order=_order(query))
        return self._entries(conn, views), total

    def _by_progress(
        self, conn: Connection, query: ExperimentQuery, where: sa.ColumnElement[bool]
    ) -> tuple[list[ExperimentEntry], int]:
        """Return a page in the order of the progress that it shows. That of running trials is no column of a table."""
        counted = _COUNTED.where(where).group_by(experiments.c.id, experiments.c.state, searches.c.max_trials)
        rows = conn.execute(counted.order_by(experiments.c.id.desc())).all()
        running = self._progress.of(conn, [row.id for row in rows if row.running], self.db.now())
        shares = {row.id: _share(row.state, row.planned, row._asdict(), running.get(row.id, ())) for row in rows}
        known = [(share, one) for one, share in shares.items() if share is not None]
        ordered = [one for _, one in sorted(known, key=itemgetter(0), reverse=query.descending)]
        # As in the other orders, rows without a value are the last ones.
        ordered += [one for one, share in shares.items() if share is None]
        ids = ordered[query.offset : query.offset + query.limit]
        views = {view.experiment_id: view for view in experiment_views(conn, experiments.c.id.in_(ids))}
        return self._entries(conn, [views[one] for one in ids], running), len(rows)

    @reads
    def get(self, conn: Connection, experiment_id: int) -> ExperimentEntry | None:
        """Return one experiment as a row of the table, None when there is none with this id."""
        found = self._entries(conn, experiment_views(conn, experiments.c.id == experiment_id))
        return found[0] if found else None

    @reads
    def plan(self, conn: Connection, experiment_id: int) -> ExperimentPlan | None:
        """Return DAG, plan and metric of an experiment, None when there is none with this id. Reads no trials."""
        row = conn.execute(_PLAN.where(experiments.c.id == experiment_id)).one_or_none()
        if row is None:
            return None
        metric, smaller = row.metric, row.smaller_is_better
        if row.search_id is None:
            (view,) = experiment_views(conn, experiments.c.id == experiment_id)
            metric, smaller = view.metric, view.smaller_is_better
        return ExperimentPlan(
            experiment_id=row.id,
            dag_id=row.dag_id,
            search_id=row.search_id,
            config_id=_config_id(conn, experiment_id),
            metric=metric,
            smaller_is_better=smaller,
        )

    @reads
    def best_trial(self, conn: Connection, experiment_id: int) -> int | None:
        """Return the trial with the best metric, None while no trial has one."""
        return best_trial(conn, experiment_id)

    @reads
    def config_id(self, conn: Connection, experiment_id: int) -> int | None:
        """Return the configuration of an experiment's newest plan, else of its first trial, None without both."""
        return _config_id(conn, experiment_id)

    def _entries(
        self,
        conn: Connection,
        views: list[ExperimentView],
        running: Mapping[int, Sequence[TrialProgress]] | None = None,
    ) -> list[ExperimentEntry]:
        own = labels_of(conn, "experiment", [view.experiment_id for view in views])
        cannot_run = reasons_of_stuck(conn, views)
        if running is None:
            ids = [view.experiment_id for view in views if view.trials.get("running")]
            running = self._progress.of(conn, ids, self.db.now())
        return [
            ExperimentEntry(
                view=view,
                labels=own.get(view.experiment_id, Labels()),
                progress=_share(view.state, view.max_trials, view.trials, running.get(view.experiment_id, ())),
                expected_end=self._expected_end(conn, view) or _latest_end(view, running.get(view.experiment_id, ())),
                cannot_run=cannot_run.get(view.experiment_id),
            )
            for view in views
        ]

    def _expected_end(self, conn: Connection, view: ExperimentView) -> Any:
        """Return the expected end of a running experiment. The cost does not depend on the number of its trials."""
        if view.state != "running" or view.search_id is None or not view.trials.get("running"):
            return None
        of = (trials.c.search_id == view.search_id, trials.c.cleared_at.is_(None))
        ended = sa.select(_STARTED, trials.c.ended_at).where(*of, trials.c.state.in_(TRIAL_ENDED))
        running = sa.select(_STARTED).where(*of, trials.c.state == "running")
        now = self.db.now()
        times = conn.execute(ended.order_by(trials.c.number.desc()).limit(SAMPLE)).all()
        ended_s = [(row.ended_at - row.started_at).total_seconds() for row in times if row.started_at and row.ended_at]
        running_s = [(now - (at or now)).total_seconds() for at in conn.scalars(running.limit(1000))]
        started = sum(number for state, number in view.trials.items() if state != "queued")
        return expected_end(now, ended_s, running_s, remaining=view.max_trials - started)


def _share(state: str, planned: int, trials: Mapping[str, int], running: Sequence[TrialProgress]) -> float | None:
    """Return the share of the planned training that is done, None if only trials of unknown length have begun.

    Running trials whose share is unknown are as far as the rest. In an experiment that has failed or was killed, only
    trials with a result count, and one without any has no share.

    :param state: of the experiment
    :param planned: number of trials
    :param trials: state -> trials in it
    """
    is_over = state in ("errored", "killed")
    ended = sum(trials.get(one, 0) for one in (TRIAL_SUCCEEDED if is_over else TRIAL_ENDED))
    mean = mean_share(running)
    started = trials.get("running", 0)
    is_unknown = is_over or (mean is None and started > 0)
    if not planned or (is_unknown and not ended):
        return None
    return min(1.0, (ended + (mean or 0.0) * started) / planned)


def _latest_end(view: ExperimentView, running: Sequence[TrialProgress]) -> datetime | None:
    """Return when the last trial ends, None while a trial waits, or when the end of one is unknown."""
    ended = sum(view.trials.get(state, 0) for state in TRIAL_ENDED)
    ends = [one.expected_end for one in running if one.expected_end is not None]
    return max(ends) if ends and ended + len(ends) >= view.max_trials else None


def _config_id(conn: Connection, experiment_id: int) -> int | None:
    of_plan = sa.select(searches.c.config_id).where(searches.c.experiment_id == experiment_id)
    planned = conn.scalar(of_plan.order_by(searches.c.id.desc()).limit(1))
    if planned is not None:
        return int(planned)
    of_trial = sa.select(trials.c.config_id).where(trials.c.experiment_id == experiment_id)
    first = conn.scalar(of_trial.order_by(trials.c.id).limit(1))
    return None if first is None else int(first)


_PLAN = sa.select(
    experiments.c.id, experiments.c.dag_id, searches.c.id.label("search_id"), searches.c.metric,
    searches.c.smaller_is_better,
).select_from(WITH_SEARCH)  # fmt: skip
_STARTED = (
    (sa.select(sa.func.min(attempts.c.started_at)).where(attempts.c.trial_id == trials.c.id).correlate(trials))
    .scalar_subquery()
    .label("started_at")
)
#: Experiments with the numbers of their planned, running and ended trials, the latter by state.
_COUNTED: sa.Select[Any] = sa.select(
    experiments.c.id,
    sa.func.coalesce(searches.c.max_trials, sa.func.count(trials.c.id)).label("planned"),
    experiments.c.state,
    *(sa.func.count(sa.case((trials.c.state == state, 1))).label(state) for state in ("running", *TRIAL_ENDED)),
).select_from(WITH_SEARCH.outerjoin(trials, sa.and_(trials.c.experiment_id == experiments.c.id, IS_CURRENT)))
_DISPLAY_NAME = (
    sa.select(labels.c.display_name)
    .where(labels.c.kind == "experiment", labels.c.object_id == experiments.c.id)
    .correlate(experiments)
    .scalar_subquery()
)
_DESCRIPTION = (
    sa.select(labels.c.description)
    .where(labels.c.kind == "experiment", labels.c.object_id == experiments.c.id)
    .correlate(experiments)
    .scalar_subquery()
)
_ORDERS: Mapping[ExperimentOrder, sa.ColumnElement[Any]] = {
    "created_at": experiments.c.id,
    "ended_at": experiments.c.ended_at,
    "name": sa.func.lower(sa.func.coalesce(_DISPLAY_NAME, experiments.c.name)),
    "dag_id": experiments.c.dag_id,
    "state": STATE,
    "method": searches.c.method,
    "best": BEST_METRIC,
    "max_trials": searches.c.max_trials,
    "owner": experiments.c.owner,
    "project": experiments.c.project,
}


def _order(query: ExperimentQuery) -> list[sa.ColumnElement[Any]]:
    column = _ORDERS[query.sort]
    # Both databases spell NULLS LAST.
    return [(column.desc() if query.descending else column.asc()).nulls_last()]


def _matching(query: ExperimentQuery) -> list[sa.ColumnElement[bool]]:
    where: list[sa.ColumnElement[bool]] = []
    if query.state is not None:
        where.append(STATE.in_([query.state]))
    if query.never_fits:
        where.append(experiments.c.id.in_(CANNOT_RUN.with_only_columns(CANNOT_RUN.selected_columns.experiment_id)))
    if query.dag_id is not None:
        where.append(experiments.c.dag_id == query.dag_id)
    if query.run_id is not None:
        where.append(experiments.c.run_id == query.run_id)
    where += in_place(query)
    if query.dags is not None:
        where.append(experiments.c.dag_id.in_(sorted(query.dags)))
    where += has_tags("experiment", experiments.c.id, query.tags)
    if query.name:
        where.append(contains(query.name, experiments.c.name, _DISPLAY_NAME))
    if query.text:
        texts = (experiments.c.name, experiments.c.dag_id, experiments.c.run_id, _DISPLAY_NAME, _DESCRIPTION)
        where.append(contains(query.text, *texts, number=experiments.c.id))
    return where
