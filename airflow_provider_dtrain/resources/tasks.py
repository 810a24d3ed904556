"""Task instances of Airflow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TaskRef:
    """A task instance of Airflow."""

    dag_id: str
    run_id: str
    task_id: str
    #: -1: the task is not mapped.
    map_index: int
