"""Submissions: rights that the API granted to the DAG runs that users requested."""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database.tables import submissions, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes
from airflow_provider_dtrain.store.records.submissions import Submission
from airflow_provider_dtrain.store.records.trials import TrialKey


class Submissions:
    """One record per DAG run that the API or the command line triggered. It never changes."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def add(self, conn: Connection, submission: Submission) -> None:
        """Store what a DAG run may use, before it is triggered."""
        conn.execute(submissions.insert().values(**asdict(submission), created_at=self.db.now()))

    @reads
    def find(self, conn: Connection, dag_id: str, run_id: str) -> Submission | None:
        """Return what a DAG run may use, None for one that was triggered in Airflow itself."""
        names = [submissions.c[name] for name in Submission.__dataclass_fields__]
        where = submissions.c.dag_id == dag_id, submissions.c.run_id == run_id
        row = conn.execute(sa.select(*names).where(*where)).first()
        return None if row is None else Submission(**row._asdict())

    @reads
    def reproduced(self, conn: Connection, key: TrialKey) -> int | None:
        """Return the trial that the DAG run of a task runs again, None if it runs none again."""
        where = submissions.c.dag_id == key.dag_id, submissions.c.run_id == key.run_id
        return conn.scalar(sa.select(submissions.c.reproduces).where(*where))

    @reads
    def reproductions(self, conn: Connection, trial_id: int) -> list[int]:
        """Return the trials that run a trial again, oldest first, without cleared ones."""
        same = sa.and_(trials.c.dag_id == submissions.c.dag_id, trials.c.run_id == submissions.c.run_id)
        query = sa.select(trials.c.id).join(submissions, same).order_by(trials.c.id)
        where = submissions.c.reproduces == trial_id, trials.c.cleared_at.is_(None)
        return [int(one) for one in conn.scalars(query.where(*where))]
