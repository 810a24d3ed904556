"""DAGs of the integration tests: gangs held for several tasks, and functions that run as ranks."""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_dtrain.operators.gang import ReleaseGangOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.sensors.gang import GangSensor

PARAMS = {"config": Param("", type="string"), "slots": Param(4, type="integer")}

for with_teardown in (True, False):
    with DAG("job_gang" if with_teardown else "job_gang_left", schedule=None, params=PARAMS):
        gang = GangSensor(task_id="gang", slots="{{ params.slots }}", host_pool="gpus", deferrable=True, retries=0)
        options = {"config": "{{ params.config }}", "allocation": gang.output, "deferrable": True, "retries": 0}
        train = TrialOperator(task_id="train", **options)
        gang >> train
        if with_teardown:
            train >> ReleaseGangOperator(task_id="free", allocation=gang.output).as_teardown(setups=gang)

with DAG("job_functions", schedule=None, params={"word": Param("word", type="string")}):

    @task.dtrain(slots=2, host_pool="gpus", deferrable=True, retries=0)
    def square(number: int, word: str = "none") -> dict:
        import os

        print(f"rank {os.environ['RANK']} squares {number}")
        return {"square": number * number, "word": word, "ranks": int(os.environ["WORLD_SIZE"])}

    @task.dtrain(slots=1, host_pool="gpus", deferrable=False, retries=0)
    def fails(number: int) -> None:
        wanted = {"number": number}
        raise ValueError(f"cannot go on with {wanted}")

    @task(trigger_rule="all_done")
    def collect(found: list[dict]) -> list[int]:
        return [entry["square"] for entry in found]

    collect(square.partial(word="{{ params.word }}").expand(number=[2, 3]))
    fails(5)
