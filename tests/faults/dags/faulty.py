"""DAGs of the fault tests. The DAG run's conf holds the configuration."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.operators.trial import TrialOperator

CONFIG = {"config": Param("", type="string")}
AGAIN = {"retries": 4, "retry_delay": timedelta(seconds=1)}

with DAG("deferred", schedule=None, params=CONFIG):
    TrialOperator(task_id="train", config="{{ params.config }}", deferrable=True, **AGAIN)

with DAG("in_worker", schedule=None, params=CONFIG):
    TrialOperator(task_id="train", config="{{ params.config }}", deferrable=False, **AGAIN)

with DAG("deleted", schedule=None, params=CONFIG):
    TrialOperator(task_id="train", config="{{ params.config }}", deferrable=True, **AGAIN)
