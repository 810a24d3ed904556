"""Columns of the facts that filter expressions name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.connections import UtcDateTime
from airflow_provider_dtrain.store.database.seconds import seconds_between
from airflow_provider_dtrain.store.database.tables import (
    allocations,
    attempts,
    experiments,
    labels,
    rung_entries,
    searches,
    trials,
)
from airflow_provider_dtrain.store.queue.queue_rows import NEVER_FITS

Column = sa.ColumnElement[Any]

_NEWER: Final = searches.alias("newer_plan")
#: True for a trial that a newer trial of its task, or a newer plan, has replaced.
REPLACED: Final[sa.ColumnElement[bool]] = sa.or_(
    trials.c.cleared_at.is_not(None),
    sa.exists().where(_NEWER.c.experiment_id == trials.c.experiment_id, _NEWER.c.id > trials.c.search_id),
)
_STARTED: Final = (
    sa.select(sa.func.min(attempts.c.started_at))
    .where(attempts.c.trial_id == trials.c.id)
    .correlate(trials)
    .scalar_subquery()
)
_RUNG: Final = (
    sa.select(sa.func.max(rung_entries.c.rung))
    .where(rung_entries.c.trial_id == trials.c.id, sa.not_(rung_entries.c.is_error))
    .correlate(trials)
    .scalar_subquery()
)


def _label(kind: str, object_id: Column) -> Column:
    own = (labels.c.kind == kind, labels.c.object_id == object_id)
    return sa.select(labels.c.display_name).where(*own).correlate(trials).scalar_subquery()


def _of_latest_attempt(name: str) -> Column:
    latest = sa.select(allocations.c[name]).join(attempts, attempts.c.allocation_id == allocations.c.id)
    of_trial = latest.where(attempts.c.trial_id == trials.c.id).order_by(attempts.c.number.desc()).limit(1)
    return of_trial.correlate(trials).scalar_subquery()


def _of_experiment(column: Column) -> Column:
    return sa.select(column).where(experiments.c.id == trials.c.experiment_id).correlate(trials).scalar_subquery()


#: Column of each fact in ``core/expressions/names.py`` but ``tag`` and those that depend on the time.
_COLUMNS: Final[Mapping[str, Column]] = {
    "trial": trials.c.id,
    "number": trials.c.number,
    "name": _label("trial", trials.c.id),
    "state": sa.type_coerce(trials.c.state, sa.String),
    "experiment": sa.func.coalesce(_label("experiment", trials.c.experiment_id), _of_experiment(experiments.c.name)),
    "experiment_id": trials.c.experiment_id,
    "owner": _of_experiment(experiments.c.owner),
    "project": _of_experiment(experiments.c.project),
    "archived": _of_experiment(experiments.c.archived),
    "dag": trials.c.dag_id,
    "run": trials.c.run_id,
    "task": trials.c.task_id,
    "best": trials.c.best_metric,
    "best_step": trials.c.best_step,
    "rung": _RUNG,
    "bracket": trials.c.bracket,
    "seed": trials.c.seed,
    "restarts": trials.c.restarts,
    "error": trials.c.failure["error"].as_string(),
    "pool": _of_latest_attempt("pool"),
    "slots": _of_latest_attempt("slots"),
    "created": trials.c.created_at,
    "started": sa.type_coerce(_STARTED, UtcDateTime()),
    "ended": trials.c.ended_at,
    "replaced": REPLACED,
    "never_fits": trials.c.id.in_(sa.select(allocations.c.trial_id).where(NEVER_FITS)),
}
#: Facts that are no single column, and so neither ordered nor grouped by.
OF_SEVERAL_ROWS: Final = frozenset({"tag"})


def fact_column(name: str, now: datetime, *, is_postgresql: bool) -> Column:
    """Return the column of a fact, over rows of the table of trials.

    :param now: end of the duration of a trial that runs
    """
    if name == "duration":
        end = sa.func.coalesce(trials.c.ended_at, sa.literal(now, UtcDateTime()))
        seconds = seconds_between(sa.func.min(attempts.c.started_at), end, is_postgresql=is_postgresql)
        # The clock of the store may have been set back. One statement below reads the attempts once, not for each use.
        clamped = sa.select(sa.case((seconds < 0, 0.0), else_=seconds)).where(attempts.c.trial_id == trials.c.id)
        return clamped.correlate(trials).scalar_subquery()
    return _COLUMNS[name]
