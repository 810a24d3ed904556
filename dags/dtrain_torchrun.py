"""Trains a small model by ranks that torchrun starts, one launcher per host."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.operators.trial import TrialOperator

with DAG(
    "dtrain_torchrun",
    description="A script with torchrun as the entrypoint",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(2, type="integer", minimum=1, description="processes that train together"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "steps": Param(200, type="integer", minimum=1),
    },
):
    TrialOperator(
        task_id="train",
        config="torchrun_script/train.yaml",
        overrides={
            "model_dir": "torchrun_script",
            "hyperparameters.steps": "{{ params.steps }}",
            "resources.slots_per_trial": "{{ params.slots_per_trial }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
        deferrable=True,
    )
