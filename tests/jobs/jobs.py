"""DAGs of the integration tests. The DAG run's conf holds the configuration."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.operators.trial import TrialOperator

CONFIG = {"config": Param("", type="string")}

with DAG("job", schedule=None, params=CONFIG):
    TrialOperator(task_id="train", config="{{ params.config }}", deferrable=True, retries=0)

with DAG("job_in_worker", schedule=None, params=CONFIG):
    TrialOperator(task_id="train", config="{{ params.config }}", deferrable=False, retries=0)

with DAG("job_mapped", schedule=None, params=CONFIG):
    TrialOperator.partial(task_id="train", config="{{ params.config }}", deferrable=True, retries=0).expand(
        trial=[{"hparams": {"name": "a"}}, {"hparams": {"name": "b"}}]
    )
