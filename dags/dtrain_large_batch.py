"""Trains digits with a batch of 32 on one slot, and with one of 256, linear scaling and LAMB on more; compares both."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.operators.config import RenderConfigOperator
from airflow_provider_dtrain.operators.trial import TrialOperator

FOLDER = Path(__file__).with_name("large_batch")

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
            config=FOLDER.joinpath(f"{name}.yaml").read_text(),
            template="large_batch/template.yaml",
        )
        results.append(TrialOperator(task_id=f"train_{name}", config=config.output, deferrable=True).output)
    compare(*results)
