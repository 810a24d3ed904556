"""Trains a small model whose metrics are also in MLflow, Weights & Biases and TensorBoard, without any server."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.operators.trial import TrialOperator

with DAG(
    "dtrain_loggers",
    description="Metrics in MLflow, Weights & Biases and TensorBoard; the hosts need mlflow, wandb and tensorboard",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(1, type="integer", minimum=0, description="processes that train together"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "epochs": Param(4, type="integer", minimum=1),
    },
):
    TrialOperator(
        task_id="train",
        config="experiment_loggers/train.yaml",
        overrides={
            "model_dir": "experiment_loggers",
            "hyperparameters.epochs": "{{ params.epochs }}",
            "resources.slots_per_trial": "{{ params.slots_per_trial }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
        deferrable=True,
    )
