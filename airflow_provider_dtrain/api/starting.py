"""The DAG that starts experiments: whether it exists, and whether a user may trigger it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.models.dag import DagModel
from airflow.utils.session import create_session

from airflow_provider_dtrain.api.models.me import Starting

if TYPE_CHECKING:
    from airflow_provider_dtrain.api.security import Access

#: ``DAG_ID`` of ``airflow_provider_dtrain.dags``, whose import loads the whole DAG authoring interface.
DAG_ID = "dtrain_experiment"
WRITE_IT = "airflow dtrain init"


def starting(access: Access) -> Starting:
    """Return whether the user may start experiments, and otherwise the reason."""
    with create_session() as session:
        model = session.get(DagModel, DAG_ID)
        exists = model is not None and not model.is_stale
        is_paused = model is not None and bool(model.is_paused)
        is_broken = model is not None and bool(model.has_import_errors)
    may_trigger = access.may_trigger(DAG_ID)
    if not exists:
        hint = f"Airflow knows no DAG {DAG_ID}. To write it, run: {WRITE_IT}"
    elif is_broken:
        hint = f"The DAG {DAG_ID} has import errors. See the list of DAGs."
    elif is_paused:
        hint = f"The DAG {DAG_ID} is paused. To unpause it, run: airflow dags unpause {DAG_ID}"
    elif not may_trigger:
        hint = f"You may not trigger the DAG {DAG_ID}. Ask an administrator of Airflow for this permission."
    else:
        hint = ""
    return Starting(dag_id=DAG_ID, exists=exists, may_trigger=not hint, hint=hint)
