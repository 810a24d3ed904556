"""Trains a small module with Lightning's Trainer, which a pause or a restart resumes."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.operators.trial import TrialOperator

with DAG(
    "dtrain_lightning",
    description="Lightning's Trainer with the callback and logger of dtrain; the hosts need lightning",
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
        config="lightning_trainer/train.yaml",
        overrides={
            "model_dir": "lightning_trainer",
            "hyperparameters.epochs": "{{ params.epochs }}",
            "resources.slots_per_trial": "{{ params.slots_per_trial }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
        deferrable=True,
    )
