"""Compares a training with batch size 32 on one slot with batch size 256, linear scaling and LAMB on several slots."""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.operators.config import RenderConfigOperator
from airflow_provider_dtrain.operators.trial import TrialOperator

POOL = "{{ params.pool or 'null' }}"
OVERRIDES = {
    "small": {
        "model_dir": "large_batch",
        "hyperparameters.epochs": "{{ params.epochs }}",
        "resources.slots_per_trial": "{{ 1 if params.slots_per_trial else 0 }}",
        "resources.pool": POOL,
    },
    "large": {
        "model_dir": "large_batch",
        "hyperparameters.epochs": "{{ params.epochs }}",
        "hyperparameters.optimizer": "{{ params.optimizer }}",
        # Learning rate for 32 samples. Linear scaling raises it to 8 times as much during the first epochs.
        "hyperparameters.lr": "{{ {'lamb': 0.003, 'lars': 1.0, 'radam': 0.002, 'adam': 0.001}[params.optimizer] }}",
        "resources.slots_per_trial": "{{ params.slots_per_trial }}",
        "resources.pool": POOL,
    },
}

with DAG(
    "dtrain_large_batch",
    description="A small batch and a large one with linear scaling and LAMB, side by side",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(2, type="integer", minimum=0, description="processes that train the large batch"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "epochs": Param(20, type="integer", minimum=1),
        "optimizer": Param("lamb", enum=["lamb", "lars", "radam", "adam"], description="for the large batch"),
    },
):

    @task
    def compare(small: dict, large: dict) -> dict:
        for name, result in (("small", small), ("large", large)):
            place = f"at batch {result['best_step']} of {result['steps']}"
            print(f"{name} batch: best accuracy {result['metric']:.4f} {place}")
        return {"small": small["metric"], "large": large["metric"]}

    results = []
    for name in ("small", "large"):
        config = RenderConfigOperator(
            task_id=f"config_{name}",
            config=f"large_batch/{name}.yaml",
            template="large_batch/template.yaml",
            overrides=OVERRIDES[name],
        )
        results.append(TrialOperator(task_id=f"train_{name}", config=config.output, deferrable=True).output)
    compare(*results)
