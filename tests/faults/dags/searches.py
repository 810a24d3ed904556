"""Search DAGs of the fault tests. The DAG run's conf holds the configuration."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.task_groups import experiment

AGAIN = {"retries": 4, "retry_delay": timedelta(seconds=1)}

for name, deferrable in (("searched", True), ("searched_in_worker", False)):
    with DAG(name, schedule=None, params={"config": Param("", type="string")}):
        experiment("{{ params.config }}", deferrable=deferrable, **AGAIN)
