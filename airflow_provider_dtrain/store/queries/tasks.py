"""Task instances behind trials and gangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.resources.tasks import TaskRef

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.lifecycle.follower_text import Silence
    from airflow_provider_dtrain.store.records.trials import AttemptView, TaskView, TrialKey


def task_ref(key: TrialKey) -> TaskRef:
    """Return the task instance of a trial or gang."""
    return TaskRef(dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id, map_index=key.map_index)


def place_of(gang: TaskView | AttemptView, silence: Silence) -> int | None:
    """Return the place of a gang among the waiting ones of its pool, None if it does not wait there for its turn.

    A gang without a follower is skipped, and the places of an external scheduler are not ours to know.
    """
    return None if silence.is_loss or gang.is_external else gang.position
