"""Finds what limits a training, in short runs of its program on one gang.

The page of the experiment with the tag ``diagnosis`` shows the verdict, and so does the XCom of the task.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.operators.diagnose import DiagnoseOperator

with DAG(
    "dtrain_diagnose",
    description="Short runs of a training, and what limits it",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(2, type="integer", minimum=1, description="processes that train together"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "steps": Param(50, type="integer", minimum=5, description="measured steps of each run"),
    },
):
    diagnosis = DiagnoseOperator(
        task_id="diagnose",
        config="digits/digits.yaml",
        template="digits/template.yaml",
        overrides={
            "model_dir": "digits",
            "hyperparameters.epochs": 1000,
            "resources.slots_per_trial": "{{ params.slots_per_trial }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
        steps="{{ params.steps }}",
    )

    @task
    def show(found: dict) -> str:
        print("\n".join(found["sentences"]))
        return found["limit"]

    show(diagnosis.output)
