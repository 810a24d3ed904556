"""Trains in a container: the image brings Python and PyTorch, and the hosts podman, docker or apptainer."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.operators.trial import TrialOperator

with DAG(
    "dtrain_container",
    description="A script in a container",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "image": Param("pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime", type="string", minLength=1),
        "slots_per_trial": Param(2, type="integer", minimum=1, description="ranks that train together"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
    },
):
    TrialOperator(
        task_id="train",
        config="torchrun_script/train.yaml",
        overrides={
            "name": "container",
            "model_dir": "torchrun_script",
            "entrypoint": "torchrun train.py",
            "environment.image": "{{ params.image }}",
            # Without a runtime on its hosts, the trial fails instead of running in the hosts' own environment.
            "environment.container": "required",
            "resources.slots_per_trial": "{{ params.slots_per_trial }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
        deferrable=True,
    )
