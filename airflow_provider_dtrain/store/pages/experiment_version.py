"""Version of the table of experiments, without the work of rendering a page."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database.tables import experiments, labels, searches, tags, trials
from airflow_provider_dtrain.store.experiment_views import WITH_SEARCH
from airflow_provider_dtrain.store.records.pages import PageVersion, page_version

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


def experiments_version(conn: Connection, progress: object) -> PageVersion:
    """Return the version of the table of experiments.

    :param progress: of running trials, as exactly as pages show it
    """
    rows = conn.execute(_ROWS).all()
    more = (conn.execute(one).all() for one in (_TRIALS, _LABELS, _TAGS))
    return page_version(rows, *more, progress, dags={row[0] for row in rows})
