"""The DAGs that ``airflow dtrain init`` writes: one runs experiments, one reaches hosts for users of the API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.operators.operation import OperationOperator
from airflow_provider_dtrain.store.records.operations import STORE_MOST
from airflow_provider_dtrain.task_groups import experiment

#: Names of the DAGs, and of their files without ``.py``.
DAG_ID = "dtrain_experiment"
OPERATIONS_DAG_ID = "dtrain_operations"
#: A probe of many hosts takes minutes, a download of a large checkpoint hours.
OPERATION_MOST = timedelta(hours=6)


def experiment_dag(dag_id: str = DAG_ID, *, tags: tuple[str, ...] = ("dtrain",), **options: Any) -> DAG:
    """Return a DAG that runs the experiment in its parameters.

    ``airflow dtrain init`` writes a file that calls it::

        from airflow_provider_dtrain.dags import experiment_dag

        dag = experiment_dag()

    A DAG run that is triggered in Airflow itself uses no connection, no stored code and no checkpoint: only ``dtrain``,
    the pages and ``airflow dtrain`` ask for the rights of a user, and store what they grant.

    :param options: options of the trials, as in :func:`~airflow_provider_dtrain.task_groups.experiment`, but with the
        default ``deferrable=True``
    """
    with DAG(
        dag_id,
        description="Runs an experiment: airflow dtrain experiments create CONFIG",
        schedule=None,
        tags=list(tags),
        is_paused_upon_creation=False,
        # The queue for slots limits how many experiments run, not the number of DAG runs.
        max_active_runs=1000,
        render_template_as_native_obj=True,
        params={
            "config": Param(
                "",
                type=["string", "object"],
                format="multiline",
                title="Configuration",
                description="YAML of an experiment, or a configuration that 'experiments create' has stored",
            ),
            "template": Param(None, type=["null", "string"], title="Template", description="Name of a stored template"),
            "payload": Param(
                None,
                type=["null", "string"],
                title="Code",
                description="Digest of stored code; empty: model_dir, relative to the DAG's folder",
            ),
        },
    ) as dag:
        experiment(
            "{{ params.config }}",
            "{{ params.template }}",
            payload="{{ params.payload }}",
            needs_submission=True,
            **{"deferrable": True, **options},
        )
    return dag


def operations_dag(dag_id: str = OPERATIONS_DAG_ID, *, tags: tuple[str, ...] = ("dtrain",), **options: Any) -> DAG:
    """Return a DAG that reaches hosts for users of the API: complete logs, downloads, stacks, commands and probes.

    The API server opens no connection to hosts. It stores a request and triggers this DAG with its number.

    :param options: arguments of the task, e.g. ``queue`` or ``pool``
    """
    with DAG(
        dag_id,
        description="Reaches hosts for users of the dtrain API. The API starts its runs",
        schedule=None,
        tags=list(tags),
        is_paused_upon_creation=False,
        max_active_runs=STORE_MOST,
        params={"operation": Param(0, type="integer", title="Operation", description="Number of a stored request")},
    ) as dag:
        OperationOperator(
            task_id="reach_hosts",
            operation_id="{{ params.operation }}",
            **{"retries": 0, "execution_timeout": OPERATION_MOST, **options},
        )
    return dag
