"""A DAG that runs whatever experiment it is triggered with: what ``airflow dtrain experiment create`` starts."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.task_groups import experiment

#: Name of the DAG, and of its file without ``.py``.
DAG_ID = "dtrain_experiment"


def experiment_dag(dag_id: str = DAG_ID, *, tags: tuple[str, ...] = ("dtrain",), **options: Any) -> DAG:
    """Return a DAG that runs the experiment of its parameters.

    ``airflow dtrain init`` writes a file that calls it::

        from airflow_provider_dtrain.dags import experiment_dag

        dag = experiment_dag()

    :param options: of the trials, as of :func:`~airflow_provider_dtrain.task_groups.experiment`; they are deferrable
        unless it is said otherwise
    """
    with DAG(
        dag_id,
        description="Runs an experiment: airflow dtrain experiment create CONFIG",
        schedule=None,
        tags=list(tags),
        is_paused_upon_creation=False,
        # The queue of the slots decides who runs, not the number of DAG runs.
        max_active_runs=1000,
        render_template_as_native_obj=True,
        params={
            "config": Param(
                "", type=["string", "object"], format="multiline", title="Configuration",
                description="YAML of an experiment, or what experiment create stored",
            ),
            "template": Param(None, type=["null", "string"], title="Template", description="Name of a stored template"),
            "payload": Param(
                None, type=["null", "string"], title="Code",
                description="Digest of stored code; empty: model_dir, from the DAG's folder on",
            ),
        },
    ) as dag:  # fmt: skip
        experiment(
            "{{ params.config }}", "{{ params.template }}", payload="{{ params.payload }}",
            **{"deferrable": True, **options},
        )  # fmt: skip
    return dag
