"""Runs a grid search as three explicit tasks: plan, mapped trials, best trial.

You can add tasks of your own between them. Without such tasks, ``task_groups.experiment()`` is shorter.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.operators.search import PlanTrialsOperator, SelectBestTrialOperator
from airflow_provider_dtrain.operators.trial import TrialOperator

with DAG(
    "dtrain_grid_search",
    description="A grid of hyperparameters on handwritten digits",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(1, type="integer", minimum=0, description="processes that train one trial"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "epochs": Param(3, type="integer", minimum=1),
    },
):
    plan = PlanTrialsOperator(
        task_id="plan",
        config="digits/grid.yaml",
        template="digits/template.yaml",
        overrides={
            "model_dir": "digits",
            "hyperparameters.epochs": "{{ params.epochs }}",
            "resources.slots_per_trial": "{{ params.slots_per_trial }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
    )
    trials = TrialOperator.partial(task_id="trial", deferrable=True).expand(trial=plan.output)
    best = SelectBestTrialOperator(task_id="best", plan=plan.output)

    @task(trigger_rule="all_done")
    def table(results: list[dict]) -> list[float]:
        for result in sorted(results, key=lambda result: -result["metric"]):
            print(f"Trial {result['trial_id']}: accuracy {result['metric']:.4f} after {result['steps']} steps")
        return sorted(result["metric"] for result in results)

    trials >> best
    table(trials.output)
