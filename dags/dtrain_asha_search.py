"""Searches hyperparameters with adaptive ASHA, which stops bad trials early. A better model triggers a DAG.

Each trial is an instance of a mapped task, named after its hyperparameters.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.assets import best_alias
from airflow_provider_dtrain.task_groups import experiment

with DAG(
    "dtrain_asha_search",
    description="Adaptive ASHA on handwritten digits",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(1, type="integer", minimum=0, description="processes that train one trial"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "max_trials": Param(16, type="integer", minimum=1),
        "epochs": Param(8, type="integer", minimum=1, description="epochs of a trial that is not stopped early"),
    },
):
    searched = experiment(
        "digits/asha.yaml",
        template="digits/template.yaml",
        overrides={
            "model_dir": "digits",
            "hyperparameters.epochs": "{{ params.epochs }}",
            "searcher.max_length.epochs": "{{ params.epochs }}",
            "searcher.max_trials": "{{ params.max_trials }}",
            "resources.slots_per_trial": "{{ params.slots_per_trial }}",
            "resources.pool": "{{ params.pool or 'null' }}",
        },
        name="digits-asha",
        deferrable=True,
    )

    @task
    def show(best: dict) -> float:
        print(f"Best of {best['trials']}: trial {best['number']} with {best['hparams']}: {best['metric']:.4f}")
        print(f"Checkpoint: {best['checkpoint']}")
        return best["metric"]

    show(searched.output)

with DAG(
    "dtrain_new_best",
    description="Runs when a search has found a better model than all searches before it",
    schedule=best_alias("digits-asha"),
    tags=["dtrain", "example"],
):

    @task
    def deploy(*, triggering_asset_events=None) -> list[str]:
        return [event.extra["checkpoint"] for event in triggering_asset_events[best_alias("digits-asha")]]

    deploy()
