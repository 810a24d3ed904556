"""Version of the table of experiments, without the work of rendering a page."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database.tables import attempts, experiments, labels, metrics, searches, tags, trials
from airflow_provider_dtrain.store.experiment_views import WITH_SEARCH
from airflow_provider_dtrain.store.records.pages import PageVersion, page_version
from airflow_provider_dtrain.store.trial_progress import progress_of_experiments

#: Digits of a progress whose change is shown.
PROGRESS_DIGITS = 3

#: Times stay as the driver returns them, which is enough to compare them.
_TIMES = sa.DateTime(timezone=True)
#: What changes of an experiment itself: the rest follows from the ids.
_ROWS: sa.Select[Any] = (
    sa.select(
        experiments.c.dag_id,
        *(experiments.c[name] for name in ("id", "state", "wish")),
        sa.type_coerce(experiments.c.ended_at, _TIMES),
        searches.c.id,
        searches.c.max_trials,
    )
    .select_from(WITH_SEARCH)
    .order_by(experiments.c.id)
)
#: Trials by experiment and state: numbers, and the best metrics, whose sum moves in one direction while trials improve.
_TRIALS: sa.Select[Any] = (
    sa.select(
        trials.c.experiment_id,
        trials.c.state,
        sa.func.count(),
        sa.func.count(trials.c.cleared_at),
        sa.func.max(trials.c.id),
        *(function(trials.c.best_metric) for function in (sa.func.min, sa.func.max, sa.func.sum)),
    )
    .group_by(trials.c.experiment_id, trials.c.state)
    .order_by(trials.c.experiment_id, trials.c.state)
)
_LABELS = (
    sa.select(labels.c.object_id, labels.c.display_name, labels.c.description)
    .where(labels.c.kind == "experiment")
    .order_by(labels.c.object_id)
)
_TAGS = (
    sa.select(tags.c.object_id, tags.c.tag).where(tags.c.kind == "experiment").order_by(tags.c.object_id, tags.c.tag)
)


#: Running trials, with the newest report and attempt of the store: their progress changes with these only.
_RUNNING = sa.and_(trials.c.state == "running", trials.c.cleared_at.is_(None))
_NEWEST = sa.select(
    sa.select(sa.func.max(metrics.c.id)).scalar_subquery(),
    sa.select(sa.func.max(attempts.c.id)).scalar_subquery(),
    sa.select(sa.func.count()).where(_RUNNING).scalar_subquery(),
    sa.select(sa.func.sum(trials.c.id)).where(_RUNNING).scalar_subquery(),
)


class ExperimentsVersion:
    """Version of the table of experiments. It keeps the progress of running trials until one of them reports."""

    def __init__(self) -> None:
        self._progress: tuple[object, object] = (None, None)

    def read(self, conn: Connection, now: datetime) -> PageVersion:
        """Return the version of the table."""
        rows = conn.execute(_ROWS).all()
        more = (conn.execute(one).all() for one in (_TRIALS, _LABELS, _TAGS))
        return page_version(rows, *more, self._running(conn, now), dags={row[0] for row in rows})

    def _running(self, conn: Connection, now: datetime) -> object:
        """Return the progress of running trials by experiment."""
        newest = tuple(conn.execute(_NEWEST).one())
        known, progress = self._progress
        if newest != known:
            found = progress_of_experiments(conn, trials.c.cleared_at.is_(None), now)
            shares = {key: [one.share or 0.0 for one in of] for key, of in found.items()}
            progress = sorted((key, len(of), round(sum(of) / len(of), PROGRESS_DIGITS)) for key, of in shares.items())
            self._progress = (newest, progress)
        return progress
