"""Facts about a task instance that no Airflow runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from airflow_provider_dtrain.hooks.tasks import TaskFacts
from airflow_provider_dtrain.resources.provenance import DagBundle
from airflow_provider_dtrain.store.records.trials import TrialKey


def task_of(key: TrialKey, folder: Path, *, bundle: DagBundle | None = None) -> TaskFacts:
    """Return the facts about the task instance of a trial.

    :param folder: of the DAG file
    """
    return TaskFacts(
        key=key,
        owner="",
        folder=folder,
        bundle=bundle,
        is_last_try=True,
        trace_parent=None,
        map_index_template=None,
        context=cast("Any", {}),
    )
