"""Task instances behind trials and gangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.resources.tasks import TaskRef

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.trials import TrialKey


def task_ref(key: TrialKey) -> TaskRef:
    """Return the task instance of a trial or gang."""
    return TaskRef(dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id, map_index=key.map_index)
