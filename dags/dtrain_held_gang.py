"""Holds one gang of slots for two consecutive trainings: the second one starts at once, on the same slots.

Without a held gang, each training waits in the queue, and another task may get the slots between the two.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.operators.gang import ReleaseGangOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.sensors.gang import GangSensor

with DAG(
    "dtrain_held_gang",
    description="One gang of slots for two trainings, released by a teardown",
    schedule=None,
    tags=["dtrain", "example"],
    params={
        "slots_per_trial": Param(2, type="integer", minimum=0, description="processes that train together"),
        "pool": Param(None, type=["null", "string"], description="pool of hosts; empty: the default pool"),
        "epochs": Param(5, type="integer", minimum=1),
        "hold_for": Param(900, type="integer", minimum=1, description="seconds to hold the gang for the next task"),
    },
):
    gang = GangSensor(
        task_id="gang",
        slots="{{ params.slots_per_trial }}",
        host_pool="{{ params.pool or '' }}",
        hold_for="{{ params.hold_for }}",
        deferrable=True,
    )
    free = ReleaseGangOperator(task_id="free", allocation=gang.output).as_teardown(setups=gang)
    slow, fast = (
        TrialOperator(
            task_id=name,
            config="digits/digits.yaml",
            template="digits/template.yaml",
            overrides={
                "model_dir": "digits",
                "hyperparameters.epochs": "{{ params.epochs }}",
                "resources.slots_per_trial": "{{ params.slots_per_trial }}",
                "resources.pool": "{{ params.pool or 'null' }}",
            },
            trial={"number": number, "hparams": {"lr": lr}},
            allocation=gang.output,
            deferrable=True,
        )
        for number, (name, lr) in enumerate({"slow": 0.001, "fast": 0.006}.items())
    )

    @task
    def compare(results: list[dict]) -> list[float]:
        print(f"On {[host['host'] for host in results[0]['hosts']]}: {[result['metric'] for result in results]}")
        return [result["metric"] for result in results]

    gang >> slow >> fast >> free
    compare([slow.output, fast.output])
