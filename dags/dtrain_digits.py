"""Trains a small network on handwritten digits from a template and a configuration, on one gang of slots.

Start it with other values: ``airflow dags trigger dtrain_digits --conf '{"slots_per_trial": 4, "pool": "gpus"}'``.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.operators.config import RenderConfigOperator
from airflow_provider_dtrain.operators.trial import TrialOperator

with DAG(
    "dtrain_digits",
    description="Distributed training of a small network on handwritten digits",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(2, type="integer", minimum=0, description="processes that train together"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "epochs": Param(10, type="integer", minimum=1),
    },
):
    config = RenderConfigOperator(
        task_id="config",
        config="digits/digits.yaml",
        template="digits/template.yaml",
        overrides={
            "model_dir": "digits",
            "hyperparameters.epochs": "{{ params.epochs }}",
            "resources.slots_per_trial": "{{ params.slots_per_trial }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
    )
    trained = TrialOperator(task_id="train", config=config.output, deferrable=True)

    @task
    def show(result: dict) -> float:
        print(f"Best accuracy {result['metric']:.4f} at step {result['best_step']} of {result['steps']}")
        print(f"Checkpoint: {result['checkpoint']}")
        for host in result["hosts"]:
            print(f"Host {host['host']}: ranks {[rank['rank'] for rank in host['ranks']]}")
        return result["metric"]

    show(trained.output)
