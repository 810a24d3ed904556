"""Submissions: rights that the API granted to the DAG runs that users requested."""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database.tables import submissions
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes
from airflow_provider_dtrain.store.records.submissions import Submission


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
