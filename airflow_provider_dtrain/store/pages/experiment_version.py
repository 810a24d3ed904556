"""Version of the table of experiments, without the work of rendering a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.search.trial_progress import TrialProgress, mean_share
from airflow_provider_dtrain.store.database.filters import in_states
from airflow_provider_dtrain.store.database.tables import attempts, experiments, labels, metrics, searches, tags, trials
from airflow_provider_dtrain.store.experiment_views import CANNOT_RUN, WITH_SEARCH
from airflow_provider_dtrain.store.places import PLACED
from airflow_provider_dtrain.store.records.pages import PageVersion, page_version
from airflow_provider_dtrain.store.trial_progress import TRIALS_MOST, progress_of_experiments

#: Digits of a progress whose change is shown.
PROGRESS_DIGITS = 3

#: Times stay as the driver returns them, which is enough to compare them.
_TIMES = sa.DateTime(timezone=True)
_IS_OPEN = experiments.c.state == "running"
#: What changes of an experiment that has not ended: the rest follows from the ids.
_ROWS: sa.Select[Any] = (
    sa.select(
        experiments.c.dag_id,
        *(experiments.c[name] for name in ("id", "control_request")),
        searches.c.id,
        searches.c.max_trials,
    )
    .select_from(WITH_SEARCH)
    .where(_IS_OPEN)
    .order_by(experiments.c.id)
)
#: An experiment that has ended changes when it runs again, and then ends again later.
_BY_DAG: sa.Select[Any] = (
    sa.select(
        experiments.c.dag_id,
        sa.func.count(),
        sa.func.max(experiments.c.id),
        sa.type_coerce(sa.func.max(experiments.c.ended_at), _TIMES),
    )
    .group_by(experiments.c.dag_id)
    .order_by(experiments.c.dag_id)
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
    .where(trials.c.experiment_id.in_(sa.select(experiments.c.id).where(_IS_OPEN)))
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
_CANNOT_RUN = CANNOT_RUN.order_by(CANNOT_RUN.selected_columns.experiment_id)

#: Running trials, with the newest report and attempt of the store: their progress changes with these only.
_IS_RUNNING = sa.and_(in_states(["running"]), trials.c.cleared_at.is_(None))
_NEWEST = sa.select(
    sa.select(sa.func.max(metrics.c.id)).scalar_subquery(),
    sa.select(sa.func.max(attempts.c.id)).scalar_subquery(),
    sa.func.count(),
    sa.func.sum(trials.c.id),
).where(_IS_RUNNING)
#: Longest time for which the expected ends of running trials are kept.
KEPT_FOR = timedelta(seconds=10)


class RunningProgress:
    """Progress of the running trials of all experiments, kept until one of them reports."""

    def __init__(self) -> None:
        self._known: tuple[object, datetime, Mapping[int, Sequence[TrialProgress]]] | None = None

    def read(self, conn: Connection, now: datetime) -> Mapping[int, Sequence[TrialProgress]]:
        """Return the progress of at most 50 running trials of each experiment, and of at most 500 in all."""
        newest = tuple(conn.execute(_NEWEST).one())
        found = self._kept(newest, now)
        if found is None:
            found = progress_of_experiments(conn, trials.c.cleared_at.is_(None), now)
            self._known = (newest, now, found)
        return found

    def of(self, conn: Connection, ids: Sequence[int], now: datetime) -> Mapping[int, Sequence[TrialProgress]]:
        """Return the same for some experiments, which are read alone unless the progress of all is known."""
        if not ids:
            return {}
        known = self._kept(tuple(conn.execute(_NEWEST).one()), now)
        if known is not None and sum(map(len, known.values())) < TRIALS_MOST:
            return {one: known[one] for one in ids if one in known}
        return progress_of_experiments(
            conn, sa.and_(trials.c.experiment_id.in_(ids), trials.c.cleared_at.is_(None)), now
        )

    def _kept(self, newest: object, now: datetime) -> Mapping[int, Sequence[TrialProgress]] | None:
        known = self._known
        is_fresh = known is not None and known[0] == newest and abs(now - known[1]) < KEPT_FOR
        return known[2] if known is not None and is_fresh else None


def experiments_version(conn: Connection, running: Mapping[int, Sequence[TrialProgress]]) -> PageVersion:
    """Return the version of the table of experiments.

    :param running: progress of running trials by experiment
    """
    every = conn.execute(_BY_DAG).all()
    more = (conn.execute(one).all() for one in (_ROWS, _TRIALS, _LABELS, _TAGS, PLACED, _CANNOT_RUN))
    shares = {key: mean_share(of) for key, of in sorted(running.items())}
    progress = [(key, None if of is None else round(of, PROGRESS_DIGITS)) for key, of in shares.items()]
    return page_version(every, *more, progress, dags={row.dag_id for row in every})
