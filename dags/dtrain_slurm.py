"""Trains one configuration on hosts of your own first, and on a Slurm cluster then. Only the pool differs."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_dtrain.operators.trial import TrialOperator

with DAG(
    "dtrain_slurm",
    description="The same training on own hosts and as a job of a Slurm cluster",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(2, type="integer", minimum=0, description="processes that train together"),
        "hosts": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "cluster": Param("hpc", type="string", description="pool with the backend slurm"),
        "epochs": Param(10, type="integer", minimum=1),
    },
):
    training = {
        "model_dir": "digits",
        "hyperparameters.epochs": "{{ params.epochs }}",
        "resources.slots_per_trial": "{{ params.slots_per_trial }}",
    }
    rehearsal = TrialOperator(
        task_id="rehearsal",
        config="digits/digits.yaml",
        template="digits/template.yaml",
        overrides={**training, "resources.pool": "{{ params.hosts or 'null' }}", "hyperparameters.epochs": 1},
        deferrable=True,
    )
    trained = TrialOperator(
        task_id="train",
        config="digits/digits.yaml",
        template="digits/template.yaml",
        overrides={**training, "resources.pool": "{{ params.cluster }}"},
        deferrable=True,
    )
    rehearsal >> trained
