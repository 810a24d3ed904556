"""Views of experiments, joined from rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.lifecycle.states import ExperimentState, TrialState
from airflow_provider_dtrain.store.database.rows import record_of
from airflow_provider_dtrain.store.database.tables import allocations, configs, experiments, searches, trials
from airflow_provider_dtrain.store.queue.queue_rows import NEVER_FITS
from airflow_provider_dtrain.store.records.searches import ExperimentView
from airflow_provider_dtrain.store.run_table.fact_columns import REPLACED

_NEWEST = (
    sa.select(sa.func.max(searches.c.generation))
    .where(searches.c.experiment_id == experiments.c.id)
    .correlate(experiments)
    .scalar_subquery()
)
#: Experiments with their newest generation.
WITH_SEARCH = experiments.outerjoin(
    searches, sa.and_(searches.c.experiment_id == experiments.c.id, searches.c.generation == _NEWEST)
)
#: The trials of the newest generation, and of these only the newest one of a cleared task.
IS_CURRENT = sa.and_(
    trials.c.cleared_at.is_(None), sa.or_(trials.c.search_id.is_(None), trials.c.search_id == searches.c.id)
)


def _has_trial(*where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    query = sa.select(trials.c.id).where(trials.c.experiment_id == experiments.c.id, IS_CURRENT, *where)
    return query.correlate(experiments, searches).exists()


#: State as views have it, see :class:`ExperimentState`.
STATE = sa.case(
    (
        sa.and_(
            experiments.c.state == "running",
            _has_trial(trials.c.state == "queued"),
            sa.not_(_has_trial(trials.c.state != "queued")),
        ),
        sa.literal(ExperimentState.QUEUED, experiments.c.state.type),
    ),
    else_=experiments.c.state,
)
#: As :data:`IS_CURRENT`, without a join.
_IS_LATEST = sa.not_(REPLACED)
#: Requests that can never be served, by experiment: their number and the oldest one.
_NEVER_FITTING = (
    sa.select(
        trials.c.experiment_id,
        sa.func.count().label("trials"),
        sa.func.min(allocations.c.id).label("oldest"),
    )
    .select_from(allocations.join(trials, trials.c.id == allocations.c.trial_id))
    .where(NEVER_FITS, trials.c.state == TrialState.QUEUED, _IS_LATEST)
    .group_by(trials.c.experiment_id)
    .subquery("never_fitting")
)
_IS_OPEN = trials.c.state.in_((TrialState.QUEUED, TrialState.RUNNING))
_OPEN_TRIALS = (
    sa.select(sa.func.count())
    .select_from(trials)
    .where(trials.c.experiment_id == _NEVER_FITTING.c.experiment_id, _IS_OPEN, _IS_LATEST)
    .correlate(_NEVER_FITTING)
    .scalar_subquery()
)
#: Experiments that cannot run: none of their trials runs, and no set of the pool's hosts can serve one that waits. With
#: the reason of the oldest request.
CANNOT_RUN: sa.Select[Any] = (
    sa.select(_NEVER_FITTING.c.experiment_id, allocations.c.reason)
    .join(allocations, allocations.c.id == _NEVER_FITTING.c.oldest)
    .where(_NEVER_FITTING.c.trials == _OPEN_TRIALS)
)
_MAY_BE_BEST = (
    trials.c.cleared_at.is_(None), trials.c.best_metric.is_not(None), trials.c.state.not_in(("errored", "killed")),
)  # fmt: skip


def _of_its_trials(function: Callable[[sa.ColumnElement[float]], sa.ColumnElement[float]]) -> sa.ScalarSelect[float]:
    """Return the lowest or highest metric of a search's trials. An index has it at its end."""
    query = sa.select(function(trials.c.best_metric)).where(trials.c.search_id == searches.c.id, *_MAY_BE_BEST)
    return query.correlate(searches).scalar_subquery()


#: Best metric of the trials of a search, None while there is none.
BEST_METRIC = sa.case((searches.c.smaller_is_better, _of_its_trials(sa.func.min)), else_=_of_its_trials(sa.func.max))
_SEARCHER = configs.c.document["searcher"].label("searcher")


def reasons_of_stuck(conn: Connection, views: Sequence[ExperimentView]) -> dict[int, str]:
    """Return the reasons of the experiments that cannot run, see :data:`CANNOT_RUN`."""
    ids = [one.experiment_id for one in views if one.trials.get("queued") and not one.trials.get("running")]
    if not ids:
        return {}
    rows = conn.execute(CANNOT_RUN.where(_NEVER_FITTING.c.experiment_id.in_(ids)))
    return {row.experiment_id: row.reason for row in rows}


def experiment_views(
    conn: Connection,
    where: sa.ColumnElement[bool],
    *,
    limit: int | None = None,
    offset: int = 0,
    order: Sequence[sa.ColumnElement[Any]] = (),
) -> list[ExperimentView]:
    """Return the matching experiments by a fixed number of queries, newest first.

    :param order: columns of :data:`WITH_SEARCH` that come before the id
    """
    names = ("method", "generation", "metric", "max_trials")
    query = (
        sa.select(
            experiments,
            searches.c.id.label("search_id"),
            *(searches.c[name] for name in names),
            sa.func.coalesce(searches.c.smaller_is_better, sa.true()).label("smaller_is_better"),
        )
        .select_from(WITH_SEARCH)
        .where(where)
        .order_by(*order, experiments.c.id.desc())
        .limit(limit)
        .offset(offset)
    )
    rows = conn.execute(query).all()
    ids = [row.id for row in rows]
    counts = _counts(conn, ids)
    best = _best(conn, ids)
    views = [_view(row, counts.get(row.id, {}), *best.get(row.id, (None, None))) for row in rows]
    return _with_own_metrics(conn, views)


def _with_own_metrics(conn: Connection, views: list[ExperimentView]) -> list[ExperimentView]:
    """Return experiments with the metric of their configuration where no search has planned them."""
    unplanned = [view.experiment_id for view in views if view.search_id is None]
    if not unplanned:
        return views
    query = (
        sa.select(
            trials.c.id,
            trials.c.experiment_id,
            trials.c.state,
            trials.c.best_metric,
            trials.c.result["metric"].label("metric"),
            _SEARCHER,
        )
        .join(configs, configs.c.config_id == trials.c.config_id)
        .where(trials.c.experiment_id.in_(unplanned))
        .order_by(trials.c.id)
    )
    rows: Sequence[Any] = conn.execute(query).all()
    own: dict[int, list[Any]] = {}
    for row in rows:
        own.setdefault(row.experiment_id, []).append(row)
    return [_compared(view, own.get(view.experiment_id, [])) if view.search_id is None else view for view in views]


def _compared(view: ExperimentView, rows: Sequence[Any]) -> ExperimentView:
    """Return an experiment without a search with the metric of its first trial, and its best trial."""
    usable = [row for row in rows if row.state != "killed"]
    searcher = (rows[0].searcher if rows else None) or {}
    smaller = bool(searcher.get("smaller_is_better", True))
    values = [(value, row.id) for row in usable if (value := _best_of(row)) is not None]
    best, trial_id = min(values, key=lambda one: one[0] if smaller else -one[0], default=(None, None))
    return replace(
        view,
        method=searcher.get("name") or "single",
        metric=searcher.get("metric"),
        smaller_is_better=smaller,
        best=best,
        best_trial=trial_id,
    )


def _best_of(row: Any) -> float | None:
    return _number(row.metric) if row.best_metric is None else float(row.best_metric)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def best_trial(conn: Connection, experiment_id: int) -> int | None:
    """Return the trial of an experiment with the best metric, None while no trial has one."""
    if conn.scalar(sa.select(searches.c.id).where(searches.c.experiment_id == experiment_id).limit(1)) is not None:
        return _best(conn, [experiment_id]).get(experiment_id, (None, None))[0]
    views = experiment_views(conn, experiments.c.id == experiment_id)
    return views[0].best_trial if views else None


def _best(conn: Connection, ids: list[int]) -> dict[int, tuple[int, float]]:
    """Return per experiment the trial with the best metric, and the metric. An index has both."""
    best = (
        sa.select(experiments.c.id, searches.c.id.label("search_id"), BEST_METRIC.label("best"))
        .select_from(WITH_SEARCH)
        .where(experiments.c.id.in_(ids))
        .subquery()
    )
    of_best = (trials.c.search_id == best.c.search_id, trials.c.best_metric == best.c.best, *_MAY_BE_BEST)
    first = sa.select(trials.c.id).where(*of_best).order_by(trials.c.number, trials.c.id).limit(1).correlate(best)
    query = sa.select(best.c.id, first.scalar_subquery().label("trial"), best.c.best)
    return {row.id: (row.trial, row.best) for row in conn.execute(query).all() if row.trial is not None}


def _counts(conn: Connection, ids: list[int]) -> dict[int, dict[str, int]]:
    query = (
        sa.select(experiments.c.id, trials.c.state, sa.func.count())
        .select_from(WITH_SEARCH.join(trials, trials.c.experiment_id == experiments.c.id))
        .where(experiments.c.id.in_(ids), IS_CURRENT)
        .group_by(experiments.c.id, trials.c.state)
    )
    found: dict[int, dict[str, int]] = {}
    for experiment_id, state, count in conn.execute(query):
        found.setdefault(experiment_id, {})[state] = count
    return found


def _view(row: Row[Any], counts: dict[str, int], best_trial: int | None, best: float | None) -> ExperimentView:
    planned = sum(counts.values()) if row.max_trials is None else row.max_trials
    # The same as STATE, from the counts that are known already.
    is_queued = row.state == ExperimentState.RUNNING and counts.keys() == {TrialState.QUEUED}
    return record_of(
        ExperimentView,
        row,
        experiment_id=row.id,
        state=ExperimentState.QUEUED if is_queued else row.state,
        trials=counts,
        max_trials=planned,
        best=best,
        best_trial=best_trial,
    )
