"""Waits for a search that another DAG or ``airflow dtrain`` has started, and uses its best trial."""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.sensors.experiment import ExperimentSensor

with DAG(
    "dtrain_wait_for_experiment",
    description="A task that waits for an experiment of another DAG",
    schedule=None,
    tags=["dtrain", "example"],
    params={"experiment": Param("digits-asha", type="string", description="name or id of the experiment")},
):
    searched = ExperimentSensor(
        task_id="search",
        experiment="{{ params.experiment }}",
        deferrable=True,
        poke_interval=30,
        timeout=24 * 3600,
    )

    @task
    def show(found: dict) -> int:
        print(f"Experiment {found['experiment_id']} is {found['state']}: best metric {found['best']}")
        return found["best_trial"]

    show(searched.output)
