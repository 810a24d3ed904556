"""Experiments and trials behind a DAG run or a task instance."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database.tables import experiments, searches, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.experiment_views import experiment_views
from airflow_provider_dtrain.store.records.pages import DagRunExperiment, TaskTrial
from airflow_provider_dtrain.store.views import TRIAL_KEY, key_of

#: Most trials of one answer: a DAG run may have 10,000.
TRIALS_MAX = 200
_NEWER_PLAN = (
    sa.exists()
    .where(searches.c.experiment_id == trials.c.experiment_id, searches.c.id > trials.c.search_id)
    .label("is_of_older_plan")
)


class LookupPage:
    """The way from Airflow's objects to those of the store."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def experiments(self, conn: Connection, dag_id: str, run_id: str) -> list[DagRunExperiment]:
        """Return the experiments of a DAG run, newest first."""
        where = sa.and_(experiments.c.dag_id == dag_id, experiments.c.run_id == run_id)
        return [
            DagRunExperiment(experiment_id=view.experiment_id, name=view.name, state=view.state)
            for view in experiment_views(conn, where, limit=TRIALS_MAX)
        ]

    @reads
    def trials(
        self, conn: Connection, dag_id: str, run_id: str, task_id: str | None = None, map_index: int | None = None
    ) -> list[TaskTrial]:
        """Return the trials of a DAG run, newest first.

        :param task_id: only of this task
        :param map_index: only of this instance of a mapped task; None = all
        """
        given = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index}
        where = [trials.c[name] == value for name, value in given.items() if value is not None]
        names = ("experiment_id", "number", "hparams", "is_drawn", "config_id", "state", "cleared_at")
        query = sa.select(trials.c.id, *(trials.c[name] for name in names), *TRIAL_KEY, _NEWER_PLAN).where(*where)
        return [
            TaskTrial(
                trial_id=row.id,
                key=key_of(row),
                is_current=row.cleared_at is None and not row.is_of_older_plan,
                **{name: getattr(row, name) for name in names if name != "cleared_at"},
            )
            for row in conn.execute(query.order_by(trials.c.id.desc()).limit(TRIALS_MAX))
        ]
