"""Records of the jobs of external schedulers, from their rows."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Row

from airflow_provider_dtrain.core.external_jobs import ExternalJob, end_of
from airflow_provider_dtrain.store.database.rows import record_of


def job_of_row(row: Row[Any]) -> ExternalJob:
    """Return the job of a row of ``external_jobs``."""
    return record_of(
        ExternalJob,
        row,
        job_id=row.id,
        nodes=tuple(row.nodes or ()),
        end=end_of(row.end),
        hosts=row.hosts or {},
        is_cancelled=row.cancelled_at is not None,
    )
