"""Failed trials of experiments, and the last good run before a failure."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.failure_groups import FailedTrial
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_SUCCEEDED, TrialState
from airflow_provider_dtrain.store.database.filters import in_states
from airflow_provider_dtrain.store.database.tables import experiments, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.pages.trial_table import current_trials
from airflow_provider_dtrain.store.records.failures import GoodRun


class Failures:
    """Failed trials, and what they are compared with."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def of_experiment(self, conn: Connection, experiment_id: int, *, most: int) -> list[FailedTrial]:
        """Return the current trials of an experiment that failed, the latest ones first.

        :param most: number of trials
        """
        where = [*current_trials(experiment_id), in_states([TrialState.ERRORED])]
        query = sa.select(trials.c.id, trials.c.failure).where(*where).order_by(trials.c.id.desc()).limit(most)
        return [FailedTrial(trial_id=row.id, failure=row.failure or {}) for row in conn.execute(query)]

    @reads
    def last_good_run(self, conn: Connection, trial_id: int) -> GoodRun | None:
        """Return the trial that ended with a result last before a trial ended, or before now if it has not ended.

        It is a trial of the same experiment, else of an earlier experiment with the same name and DAG.
        """
        failed = conn.execute(_OF_TRIAL.where(trials.c.id == trial_id)).one()
        own = [trials.c.experiment_id == failed.experiment_id, trials.c.id != trial_id]
        earlier = [
            experiments.c.name == failed.name,
            experiments.c.dag_id == failed.dag_id,
            experiments.c.id < failed.experiment_id,
        ]
        until = failed.ended_at or self.db.now()
        for where in (own, earlier):
            query = _GOOD.where(*where, in_states(TRIAL_SUCCEEDED), trials.c.ended_at <= until)
            if (row := conn.execute(query).first()) is not None:
                return GoodRun(**row._mapping)
        return None


_OF_TRIAL = sa.select(trials.c.ended_at, trials.c.experiment_id, experiments.c.name, experiments.c.dag_id).join(
    experiments, experiments.c.id == trials.c.experiment_id
)
_GOOD = (
    sa.select(trials.c.id.label("trial_id"), trials.c.experiment_id, trials.c.dag_id, trials.c.ended_at)
    .join(experiments, experiments.c.id == trials.c.experiment_id)
    .order_by(trials.c.ended_at.desc(), trials.c.id.desc())
    .limit(1)
)
