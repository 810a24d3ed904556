"""The DAGs that ``airflow dtrain init`` writes: whether they exist, and runs of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session

from airflow_provider_dtrain.api.models.me import Starting
from airflow_provider_dtrain.errors import ConflictError

#: ``DAG_ID`` of ``airflow_provider_dtrain.dags``, whose import loads the whole DAG authoring interface.
DAG_ID = "dtrain_experiment"
OPERATIONS_DAG_ID = "dtrain_operations"
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


def unusable(dag: DagState, dag_id: str) -> str:
    """Return why a DAG cannot run, with the next step. Empty: it can run."""
    if not dag.exists:
        return f"Airflow knows no DAG {dag_id}. To write it, run: {WRITE_IT}"
    if dag.is_broken:
        return f"The DAG {dag_id} has import errors. See the list of DAGs."
    if dag.is_paused:
        where = f"dags/{dag_id}"
        return f"The DAG {dag_id} is paused. Unpause it on its page ({where}), or run: airflow dags unpause {dag_id}"
    return ""


def starting(dag: DagState, *, may_trigger: bool) -> Starting:
    """Return whether a user may start experiments, and otherwise the reason.

    :param may_trigger: Airflow lets the user trigger the DAG
    """
    hint = unusable(dag, DAG_ID)
    if not hint and not may_trigger:
        hint = f"You may not trigger the DAG {DAG_ID}. Ask an administrator of Airflow for this permission."
    return Starting(dag_id=DAG_ID, exists=dag.exists, may_trigger=not hint, hint=hint)


def trigger(conf: dict[str, Any], user: str, dag_id: str = DAG_ID, *, run_id: str | None = None) -> str:
    """Trigger a DAG, as Airflow's own route does, and return the id of the DAG run.

    :param conf: values of its parameters
    :param user: name of the user, which the DAG run shows
    :param run_id: id of a submission; None = Airflow chooses one
    :raises ConflictError: the DAG has no such parameters, or Airflow refuses the DAG run
    """
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.sdk.exceptions import AirflowException
    from airflow.utils.types import DagRunTriggeredByType

    _require_parameters(conf, dag_id)
    try:
        run = trigger_dag(
            dag_id=dag_id,
            run_id=run_id,
            triggered_by=DagRunTriggeredByType.UI,
            triggering_user_name=user,
            conf=conf,
        )
    except (AirflowException, ValueError) as error:
        raise ConflictError(f"Airflow refused the DAG run: {error}") from error
    if run is None:
        raise ConflictError(f"Airflow created no run of the DAG {dag_id}.")
    return str(run.run_id)


def run_state(dag_id: str, run_id: str) -> str | None:
    """Return the state of a DAG run, None when Airflow does not know it."""
    with create_session() as session:
        query = sa.select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        found = session.scalar(query)
        return None if found is None else str(getattr(found, "value", found))


def _require_parameters(conf: dict[str, Any], dag_id: str) -> None:
    """Refuse a DAG that would ignore the values: another DAG of the same name."""
    from airflow.models.serialized_dag import SerializedDagModel

    dag = SerializedDagModel.get_dag(dag_id)
    if dag is None or not set(conf) <= set(dag.params):
        raise ConflictError(
            f"The DAG {dag_id} has not the parameters of the one that the provider writes. To write it, run: {WRITE_IT}"
        )
