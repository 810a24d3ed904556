"""The DAG that starts experiments: whether it exists, and whether a user may trigger it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow.models.dag import DagModel
from airflow.utils.session import create_session

from airflow_provider_dtrain.api.models.me import Starting
from airflow_provider_dtrain.errors import ConflictError

#: ``DAG_ID`` of ``airflow_provider_dtrain.dags``, whose import loads the whole DAG authoring interface.
DAG_ID = "dtrain_experiment"
WRITE_IT = "airflow dtrain init"


@dataclass(frozen=True, kw_only=True)
class DagState:
    """State of a DAG in Airflow."""

    exists: bool
    is_paused: bool = False
    is_broken: bool = False
    #: Path of the DAG file where Airflow parsed it. The code of an experiment is below its folder.
    file: str | None = None


def dag_state(dag_id: str) -> DagState:
    """Return the state of a DAG in Airflow's metadata database."""
    with create_session() as session:
        model = session.get(DagModel, dag_id)
        if model is None or model.is_stale:
            return DagState(exists=False)
        broken = bool(model.has_import_errors)
        return DagState(exists=True, is_paused=bool(model.is_paused), is_broken=broken, file=model.fileloc)


def starting(dag: DagState, *, may_trigger: bool) -> Starting:
    """Return whether a user may start experiments, and otherwise the reason.

    :param may_trigger: Airflow lets the user trigger the DAG
    """
    if not dag.exists:
        hint = f"Airflow knows no DAG {DAG_ID}. To write it, run: {WRITE_IT}"
    elif dag.is_broken:
        hint = f"The DAG {DAG_ID} has import errors. See the list of DAGs."
    elif dag.is_paused:
        hint = f"The DAG {DAG_ID} is paused. To unpause it, run: airflow dags unpause {DAG_ID}"
    elif not may_trigger:
        hint = f"You may not trigger the DAG {DAG_ID}. Ask an administrator of Airflow for this permission."
    else:
        hint = ""
    return Starting(dag_id=DAG_ID, exists=dag.exists, may_trigger=not hint, hint=hint)


def trigger(conf: dict[str, Any], user: str) -> str:
    """Trigger the DAG that starts experiments, as Airflow's own route does, and return the id of the DAG run.

    :param conf: values of the parameters ``config`` and ``payload``
    :param user: name of the user, which the DAG run shows
    :raises ConflictError: the DAG has no such parameters, or Airflow refuses the DAG run
    """
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import AirflowException
    from airflow.utils.types import DagRunTriggeredByType

    _require_parameters(conf)
    try:
        run = trigger_dag(dag_id=DAG_ID, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=user, conf=conf)
    except (AirflowException, ValueError) as error:
        raise ConflictError(f"Airflow refused the DAG run: {error}") from error
    if run is None:
        raise ConflictError(f"Airflow created no run of the DAG {DAG_ID}.")
    return str(run.run_id)


def _require_parameters(conf: dict[str, Any]) -> None:
    """Refuse a DAG that would ignore the values: another DAG of the same name."""
    from airflow.models.serialized_dag import SerializedDagModel

    dag = SerializedDagModel.get_dag(DAG_ID)
    if dag is None or not set(conf) <= set(dag.params):
        raise ConflictError(
            f"The DAG {DAG_ID} cannot run an experiment: it was not made by experiment_dag(). To write one that can, "
            f"run: {WRITE_IT}"
        )
