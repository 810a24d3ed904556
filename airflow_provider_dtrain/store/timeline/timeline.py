"""Timelines of trials, read from the rows of the store."""

from __future__ import annotations

from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry, in_order, limited, shortened
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.timeline.attempt_entries import attempt_entries
from airflow_provider_dtrain.store.timeline.history import read_history
from airflow_provider_dtrain.store.timeline.job_entries import job_entries
from airflow_provider_dtrain.store.timeline.queue_entries import queue_entries
from airflow_provider_dtrain.store.timeline.report_entries import report_entries
from airflow_provider_dtrain.store.timeline.trial_entries import trial_entries


class Timeline:
    """Everything that happened to a trial, by attempt and host."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def of_trial(self, conn: Connection, trial_id: int) -> list[TimelineEntry]:
        """Return what happened to a trial, in the order of cause and effect.

        Garbage collection removes the details of a trial that ended long ago. Its submission, grants, attempts,
        checkpoints and end stay.

        :raises NotFoundError: there is no trial with this id
        """
        history = read_history(conn, trial_id, self.db.now())
        if history is None:
            raise NotFoundError(f"There is no trial {trial_id}. See: airflow dtrain trials list")
        parts = (trial_entries, queue_entries, job_entries, attempt_entries, report_entries)
        entries = [entry for part in parts for entry in part(history)]
        return limited([shortened(entry) for entry in in_order(entries)])
