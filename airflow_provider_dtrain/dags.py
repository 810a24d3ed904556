"""The DAG behind ``airflow dtrain experiments create``: it runs the experiment in its parameters."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.task_groups import experiment

#: Name of the DAG, and of its file without ``.py``.
DAG_ID = "dtrain_experiment"


def experiment_dag(dag_id: str = DAG_ID, *, tags: tuple[str, ...] = ("dtrain",), **options: Any) -> DAG:
    """Return a DAG that runs the experiment in its parameters.

    ``airflow dtrain init`` writes a file that calls it::

        from airflow_provider_dtrain.dags import experiment_dag

        dag = experiment_dag()

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
            **{"deferrable": True, **options},
        )
    return dag
