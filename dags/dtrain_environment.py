"""Trains with a package that the hosts do not have: a lock file travels with the code."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.operators.trial import TrialOperator

with DAG(
    "dtrain_environment",
    description="A script with packages from a lock file",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(2, type="integer", minimum=1, description="ranks that train together"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
    },
):
    TrialOperator(
        task_id="train",
        config="environment_script/train.yaml",
        overrides={
            "model_dir": "environment_script",
            "resources.slots_per_trial": "{{ params.slots_per_trial }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
        deferrable=True,
    )
