"""The table of trials: filter, order and one page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.reduction import even
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.database.connections import restore_floats
from airflow_provider_dtrain.store.database.filters import contains, has_tags, in_states
from airflow_provider_dtrain.store.database.tables import (
    allocations,
    attempts,
    labels,
    metrics,
    rung_entries,
    searches,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.labels import labels_of
from airflow_provider_dtrain.store.places import IS_DELETED_TRIAL
from airflow_provider_dtrain.store.queue.queue_rows import QUEUE, task_views
from airflow_provider_dtrain.store.records.pages import (
    Labels,
    TrialChoice,
    TrialColumns,
    TrialEntry,
    TrialFigures,
    TrialHead,
    TrialOrder,
    TrialQuery,
)
from airflow_provider_dtrain.store.records.trials import TaskView
from airflow_provider_dtrain.store.run_table.fact_columns import REPLACED, fact_column
from airflow_provider_dtrain.store.run_table.table import matching_ids
from airflow_provider_dtrain.store.trial_progress import running_progress
from airflow_provider_dtrain.store.views import trial_views

#: Most parts of the path of a hyperparameter.
PATH_MAX = 20
IDS_PER_STATEMENT = 500
_WAITING = ("queued", "running", "paused")


class TrialTable:
    """Trials in pages."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def page(self, conn: Connection, query: TrialQuery) -> tuple[list[TrialEntry], int]:
        """Return one page of the matching trials, and the number of all that match.

        :raises UserError: a database cannot look up the name of the hyperparameter
        """
        now = self.db.now()
        where = _matching(conn, query, now)
        total = int(conn.scalar(sa.select(sa.func.count()).select_from(trials).where(*where)) or 0)
        ordered = _ids_in_order(conn, query, where, now)
        ids = list(conn.scalars(ordered.limit(query.limit).offset(query.offset)))
        return _entries(conn, ids, now), total

    @reads
    def chosen(self, conn: Connection, experiment_id: int, choice: TrialChoice, most: int) -> tuple[list[int], int]:
        """Return the ids of trials for a chart, and the number of trials that have started.

        :param choice: ``best``: by metric; ``latest``: by number; ``spread``: evenly from the best to the worst
        :param most: number of ids
        """
        where = [*current_trials(experiment_id), trials.c.state != "queued"]
        total = int(conn.scalar(sa.select(sa.func.count()).select_from(trials).where(*where)) or 0)
        newest = sa.select(searches.c.smaller_is_better).where(searches.c.experiment_id == experiment_id)
        smaller = conn.scalar(newest.order_by(searches.c.id.desc()).limit(1))
        best = trials.c.best_metric.desc() if smaller is False else trials.c.best_metric.asc()
        order = [trials.c.number.desc()] if choice == "latest" else [best.nulls_last(), trials.c.number.asc()]
        query = sa.select(trials.c.id).where(*where).order_by(*order)
        if choice != "spread":
            return list(conn.scalars(query.limit(most))), total
        ids = list(conn.scalars(query))
        return ([ids[index] for index in even(0, len(ids) - 1, max(2, most))] if ids else []), total

    @reads
    def columns(self, conn: Connection, experiment_id: int, *, most: int) -> TrialColumns:
        """Return state, sample and metric of the current trials of an experiment, by number.

        Hyperparameters are read by :meth:`samples`: they are most of a trial's bytes, and nearly never change.

        :param most: trials, the latest ones
        """
        latest = _COLUMNS.where(*current_trials(experiment_id)).order_by(trials.c.number.desc(), trials.c.id.desc())
        rows = conn.execute(latest.limit(most)).all()[::-1]
        return TrialColumns(*(list(column) for column in zip(*rows, strict=True))) if rows else TrialColumns()

    @reads
    def samples(self, conn: Connection, experiment_id: int, trial_ids: Sequence[int]) -> dict[int, tuple[int, str]]:
        """Return number of the sample and hyperparameters, as JSON, of the trials that have been drawn.

        :param trial_ids: trials of the experiment
        """
        if len(trial_ids) <= IDS_PER_STATEMENT:
            rows = conn.execute(_SAMPLES.where(trials.c.id.in_(trial_ids)))
        else:  # Many parameters cost more than some unwanted rows.
            of = (trials.c.experiment_id == experiment_id, trials.c.id.between(min(trial_ids), max(trial_ids)))
            rows = conn.execute(_SAMPLES.where(*of))
        wanted = set(trial_ids)
        return {trial_id: (sample, hparams) for trial_id, sample, hparams in rows if trial_id in wanted}

    @reads
    def figures(self, conn: Connection, query: TrialQuery) -> list[TrialFigures]:
        """Return the figures of the matching trials."""
        now = self.db.now()
        ordered = _FIGURES.where(*_matching(conn, query, now)).order_by(*_order(conn, query, now))
        return [_figures(row) for row in conn.execute(ordered.limit(query.limit).offset(query.offset)).all()]

    @reads
    def last_metrics(self, conn: Connection, experiment_id: int, metric: str) -> dict[int, Any]:
        """Return the latest validated value of a metric per trial, as reported."""
        latest = (
            sa.select(metrics.c.id)
            .where(metrics.c.trial_id == trials.c.id, metrics.c.metric_group == "validation", metrics.c.rank == 0)
            .order_by(metrics.c.step.desc())
            .limit(1)
            .correlate(trials)
            .scalar_subquery()
        )
        query = sa.select(metrics.c.trial_id, metrics.c.metrics).join(trials, metrics.c.id == latest)
        rows = conn.execute(query.where(*current_trials(experiment_id)))
        return {row.trial_id: restore_floats(row.metrics).get(metric) for row in rows}

    @reads
    def version(self, conn: Connection, experiment_id: int) -> tuple[object, ...]:
        """Return a value that changes whenever the state or the metric of a trial of an experiment changes."""
        of = trials.c
        figures = (sa.func.count(), sa.func.max(of.id), sa.func.max(of.ended_at), sa.func.sum(of.best_metric))
        more = (sa.func.sum(_SAMPLE), sa.func.count(of.cleared_at))
        grouped = sa.select(of.state, *figures, *more).where(of.experiment_id == experiment_id)
        return tuple(map(tuple, conn.execute(grouped.group_by(of.state).order_by(of.state))))

    @reads
    def payload(self, conn: Connection, experiment_id: int) -> str | None:
        """Return the digest of the code of an experiment's latest trial, None when it was sent none."""
        own = (trials.c.experiment_id == experiment_id, trials.c.payload.is_not(None))
        return conn.scalar(sa.select(trials.c.payload).where(*own).order_by(trials.c.id.desc()).limit(1))

    @reads
    def heads(self, conn: Connection, trial_ids: Sequence[int]) -> list[TrialHead]:
        """Return states and names of trials in the order of their ids here, without ids that do not exist."""
        rows = conn.execute(_HEADS, {"trials": list(trial_ids)})
        found = {row.trial_id: TrialHead(**row._mapping) for row in rows}
        return [found[trial_id] for trial_id in dict.fromkeys(trial_ids) if trial_id in found]

    @reads
    def some(self, conn: Connection, trial_ids: Sequence[int]) -> list[TrialEntry]:
        """Return trials in the order of their ids here, without ids that do not exist."""
        return _entries(conn, trial_ids, self.db.now())


def _entries(conn: Connection, ids: Sequence[int], now: datetime) -> list[TrialEntry]:
    views = {view.trial_id: view for view in trial_views(conn, trials.c.id.in_(ids))}
    own = labels_of(conn, "trial", ids)
    reached = conn.execute(sa.select(trials.c.id, _UNITS, _EPOCHS, _STARTED).where(trials.c.id.in_(ids)))
    figures = {row.id: row for row in reached}
    live = [view.trial_id for view in views.values() if view.state in _WAITING]
    tasks = _tasks(conn, live)
    running = [view.trial_id for view in views.values() if view.state == "running"]
    progress = running_progress(conn, trials.c.id.in_(running), now) if running else {}
    lengths = _lengths(conn, {view.search_id for view in views.values() if view.search_id is not None})
    return [
        TrialEntry(
            view=views[trial_id],
            labels=own.get(trial_id, Labels()),
            units=figures[trial_id].units,
            epochs=figures[trial_id].epochs,
            started_at=figures[trial_id].started_at,
            task=tasks.get(trial_id),
            progress=progress[trial_id].progress if trial_id in progress else None,
            lengths=tuple(lengths.get(views[trial_id].search_id or 0, {}).get(str(views[trial_id].bracket), ())),
        )
        for trial_id in ids
        if trial_id in views
    ]


def _tasks(conn: Connection, trial_ids: Collection[int]) -> dict[int, TaskView]:
    """Return the gangs of trials that wait or hold slots."""
    if not trial_ids:
        return {}
    own = sa.select(attempts.c.allocation_id).where(attempts.c.trial_id.in_(trial_ids), attempts.c.ended_at.is_(None))
    rows = conn.execute(QUEUE.where(allocations.c.id.in_(own))).all()
    return {view.trial_id: view for view in task_views(conn, rows) if view.trial_id is not None}


def _lengths(conn: Connection, search_ids: Collection[int]) -> dict[int, Mapping[str, Sequence[int]]]:
    rows = conn.execute(sa.select(searches.c.id, searches.c.rungs).where(searches.c.id.in_(search_ids)))
    return {row.id: row.rungs for row in rows}


_STARTED = (
    sa.select(sa.func.min(attempts.c.started_at))
    .where(attempts.c.trial_id == trials.c.id)
    .correlate(trials)
    .scalar_subquery()
    .label("started_at")
)
_RUNG_UNITS = (
    sa.select(sa.func.max(rung_entries.c.units))
    .where(rung_entries.c.trial_id == trials.c.id, sa.not_(rung_entries.c.is_error))
    .correlate(trials)
    .scalar_subquery()
)
_UNITS_OF = sa.func.coalesce(
    _RUNG_UNITS,
    sa.select(sa.func.max(metrics.c.step))
    .where(metrics.c.trial_id == trials.c.id, metrics.c.metric_group == "training")
    .correlate(trials)
    .scalar_subquery(),
    sa.select(sa.func.max(metrics.c.step))
    .where(metrics.c.trial_id == trials.c.id, metrics.c.metric_group == "validation")
    .correlate(trials)
    .scalar_subquery(),
)
_UNITS = _UNITS_OF.label("units")
_LATEST_EPOCH = (
    sa.select(metrics.c.epoch)
    .where(metrics.c.trial_id == trials.c.id, metrics.c.metric_group == "validation")
    .order_by(metrics.c.step.desc())
    .limit(1)
    .correlate(trials)
    .scalar_subquery()
)
_EPOCHS = sa.case((_RUNG_UNITS.is_(None), _LATEST_EPOCH)).label("epochs")
#: Of a trial without a search: the metric of its result.
_RESULT_METRIC = sa.case((trials.c.search_id.is_(None), trials.c.result["metric"].as_float()))
_FIGURE_NAMES = ("number", "state", "best_step", "restarts", "created_at", "ended_at")
_FIGURES: sa.Select[Any] = sa.select(
    trials.c.id,
    *(trials.c[name] for name in _FIGURE_NAMES),
    trials.c.hparams,
    trials.c.is_drawn,
    sa.func.coalesce(trials.c.best_metric, _RESULT_METRIC).label("metric"),
    _UNITS,
)

#: Number of a trial's sample, from 1; 0: it has none yet.
_SAMPLE = sa.case((trials.c.is_drawn, trials.c.draw + 1), else_=0)
#: Names of states: 10,000 of them cost more as members, here and in the answer.
_COLUMNS: sa.Select[Any] = sa.select(
    trials.c.id,
    trials.c.number,
    sa.type_coerce(trials.c.state, sa.String),
    _SAMPLE,
    sa.func.coalesce(trials.c.best_metric, _RESULT_METRIC),
)
_SAMPLES: sa.Select[Any] = (
    sa.select(trials.c.id, _SAMPLE, sa.cast(trials.c.hparams, sa.Text)).where(trials.c.is_drawn).order_by(trials.c.id)
)


#: As text: most names are known already, and need no values.
_HEADS: sa.Select[Any] = (
    sa.select(
        trials.c.id.label("trial_id"),
        *(trials.c[name] for name in ("number", "dag_id", "task_id", "map_index", "state", "is_drawn", "config_id")),
        sa.cast(trials.c.hparams, sa.Text).label("hparams"),
        labels.c.display_name,
    )
    .select_from(trials.outerjoin(labels, sa.and_(labels.c.kind == "trial", labels.c.object_id == trials.c.id)))
    .where(trials.c.id.in_(sa.bindparam("trials", expanding=True)))
)


def _figures(row: Row[Any]) -> TrialFigures:
    return TrialFigures(
        trial_id=row.id,
        **{name: getattr(row, name) for name in _FIGURE_NAMES},
        hparams=row.hparams if row.is_drawn else {},
        metric=row.metric,
        units=row.units,
    )


_RUNG = (
    sa.select(sa.func.max(rung_entries.c.rung))
    .where(rung_entries.c.trial_id == trials.c.id, sa.not_(rung_entries.c.is_error))
    .correlate(trials)
    .scalar_subquery()
)


#: Columns of the orders that do not depend on the time.
_ORDERS: Mapping[TrialOrder, sa.ColumnElement[Any]] = {
    "number": trials.c.number,
    "state": trials.c.state,
    "best_metric": trials.c.best_metric,
    "units": _UNITS_OF,
    "rung": _RUNG,
    "created_at": trials.c.id,
    "ended_at": trials.c.ended_at,
    "restarts": trials.c.restarts,
}


def _ids_in_order(
    conn: Connection, query: TrialQuery, where: Sequence[sa.ColumnElement[bool]], now: datetime
) -> sa.Select[Any]:
    """Return the statement for the ids of trials in the order of a query.

    :raises UserError: a database cannot look up the name of the hyperparameter
    """
    if not query.hparam or conn.dialect.name != "postgresql":
        return sa.select(trials.c.id).where(*where).order_by(*_order(conn, query, now))
    # PostgreSQL parses all hyperparameters wherever one is named, so it is named once, in rows of their own.
    value = trials.c.hparams[_path(query.hparam)].label("value")
    found = sa.select(trials.c.id, trials.c.number, value).where(*where).offset(0).subquery().c
    columns = _directed(query, _of_json(conn, found.value, ()))
    return sa.select(found.id).order_by(*columns, found.number.asc(), found.id.asc())


def _order(conn: Connection, query: TrialQuery, now: datetime) -> list[sa.ColumnElement[Any]]:
    """Return the columns of the order of a query.

    :param now: end of the duration of a trial that runs
    :raises UserError: a database cannot look up the name of the hyperparameter
    """
    if query.hparam:
        chosen = _of_json(conn, trials.c.hparams, _path(query.hparam))
    elif query.sort == "duration_s":
        chosen = [fact_column("duration", now, is_postgresql=conn.dialect.name == "postgresql")]
    else:
        chosen = [_ORDERS[query.sort]]
    columns = _directed(query, chosen)
    return [*columns, trials.c.number.asc(), trials.c.id.asc()]


def _directed(query: TrialQuery, columns: Sequence[sa.ColumnElement[Any]]) -> list[sa.ColumnElement[Any]]:
    return [(column.desc() if query.descending else column.asc()).nulls_last() for column in columns]


def _path(parts: Sequence[str]) -> tuple[str, ...]:
    """Return the path of a hyperparameter.

    :raises UserError: a database cannot look up this name
    """
    if len(parts) > PATH_MAX or not all(part and part.isprintable() and '"' not in part for part in parts):
        raise UserError(f"The table cannot be ordered by {'.'.join(parts)[:100]!r}: its name has unusual characters.")
    return tuple(parts)


def _of_json(conn: Connection, document: Any, path: tuple[str, ...]) -> list[sa.ColumnElement[Any]]:
    """Return the columns of an order by a value in JSON: numbers by value, then other values by their text."""
    value = document[path] if path else document
    if conn.dialect.name == "postgresql":
        is_number = sa.func.json_typeof(value) == "number"
    else:
        dotted = "$" + "".join(f'."{part}"' for part in path)
        is_number = sa.func.json_type(document, dotted).in_(("integer", "real"))
    return [sa.case((is_number, document[path].as_float())), document[path].as_string()]


def current_trials(experiment_id: int | None) -> list[sa.ColumnElement[bool]]:
    """Return the condition for the trials that neither a cleared task nor a newer plan replaced.

    :param experiment_id: None = trials of all experiments
    """
    if experiment_id is None:
        return [sa.not_(REPLACED)]
    of_experiment = sa.select(sa.func.max(searches.c.id)).where(searches.c.experiment_id == experiment_id)
    of_plan = sa.or_(trials.c.search_id.is_(None), trials.c.search_id == of_experiment.scalar_subquery())
    return [trials.c.experiment_id == experiment_id, trials.c.cleared_at.is_(None), of_plan]


def _matching(conn: Connection, query: TrialQuery, now: datetime) -> list[sa.ColumnElement[bool]]:
    every = [] if query.experiment_id is None else [trials.c.experiment_id == query.experiment_id]
    where = every if query.with_replaced else current_trials(query.experiment_id)
    if query.experiment_id is None:
        where.append(sa.not_(IS_DELETED_TRIAL))
    if query.dags is not None:
        where.append(trials.c.dag_id.in_(sorted(query.dags)))
    if query.states:
        where.append(in_states(query.states))
    where += has_tags("trial", trials.c.id, query.tags)
    if query.text:
        of = (labels.c.kind == "trial", labels.c.object_id == trials.c.id)
        texts = [
            sa.select(labels.c[name]).where(*of).correlate(trials).scalar_subquery()
            for name in ("display_name", "description")
        ]
        digits = query.text.isascii() and query.text.isdigit() and len(query.text) < 10
        of_number = trials.c.number == int(query.text) if digits else sa.false()
        found = contains(query.text, sa.cast(trials.c.hparams, sa.Text), *texts, number=trials.c.id)
        where.append(sa.or_(found, of_number))
    if query.where is not None:
        where.append(trials.c.id.in_(matching_ids(conn, query.where, now, tuple(where))))
    return where
