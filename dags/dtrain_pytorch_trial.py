"""Trains a PyTorchTrial class: the configuration sets its length, periods and checkpoints, and it survives a failure.

To see it resume: ``airflow dags trigger dtrain_pytorch_trial --conf '{"fail_at_batch": 60}'``. The first attempt raises
an exception in that batch, and the second attempt resumes from the latest checkpoint.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.operators.config import RenderConfigOperator
from airflow_provider_dtrain.operators.trial import TrialOperator

with DAG(
    "dtrain_pytorch_trial",
    description="A trial class on handwritten digits, with checkpoints and restarts",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(2, type="integer", minimum=0, description="processes that train together"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "epochs": Param(10, type="integer", minimum=1),
        "fail_at_batch": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            description="batch in which the first attempt fails; an epoch has 23 batches",
        ),
    },
):
    config = RenderConfigOperator(
        task_id="config",
        config="pytorch_trial/experiment.yaml",
        template="pytorch_trial/template.yaml",
        overrides={
            "model_dir": "pytorch_trial",
            "searcher.max_length.epochs": "{{ params.epochs }}",
            "data.fail_at_batch": "{{ params.fail_at_batch or 'null' }}",
            "resources.slots_per_trial": "{{ params.slots_per_trial }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
    )
    trained = TrialOperator(task_id="train", config=config.output, deferrable=True)

    @task
    def show(result: dict) -> float:
        print(f"Best accuracy {result['metric']:.4f} at batch {result['best_step']} of {result['steps']}")
        print(f"Checkpoint: {result['checkpoint']}")
        return result["metric"]

    show(trained.output)
