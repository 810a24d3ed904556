"""DAGs of the search tests. The DAG run's conf holds the configuration."""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.assets import best_alias
from airflow_provider_dtrain.task_groups import experiment

CONFIG = "{{ params.config }}"

with DAG("job_searches", schedule=None, params={"config": Param("", type="string")}):
    for one in ("first", "second"):
        experiment(CONFIG, name=one, group_id=one, deferrable=True)

with DAG("job_several_trials", schedule=None, params={"config": Param("", type="string")}):
    experiment(CONFIG, name="several", group_id="several", deferrable=True)

with DAG("job_new_best", schedule=best_alias("first")):

    @task
    def best(*, triggering_asset_events=None) -> list[float]:
        return [event.extra["metric"] for event in triggering_asset_events[best_alias("first")]]

    best()
