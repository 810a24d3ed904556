"""DAGs of ``bench_mapped.py``: trials that report one number, and the same number of tasks that only wait."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, task

from airflow_provider_dtrain.operators.search import PlanTrialsOperator
from airflow_provider_dtrain.operators.trial import TrialOperator

TIMES = Path(os.environ.get("BENCH_MAPPED_TIMES", os.devnull))
#: As long as a trigger of the provider waits before its first event.
WAIT = timedelta(seconds=12)
CONFIG = """
name: noop
entrypoint: python searched.py score
model_dir: code
resources: {slots_per_trial: 0}
profiling: {enabled: false}
hyperparameters:
  lr: {type: double, minval: 0, maxval: 1}
searcher: {name: random, metric: score, max_trials: {{ params.count }}}
"""


def noted(phase: str, began: tuple[float, float]) -> None:
    """Append how long the provider's code took in this task: wall and CPU seconds."""
    wall, cpu = began
    line = json.dumps([phase, time.perf_counter() - wall, time.process_time() - cpu])
    with TIMES.open("a") as file:
        file.write(line + "\n")


class TimedTrial(TrialOperator):
    def execute(self, context: Any) -> Any:
        began = time.perf_counter(), time.process_time()
        try:
            return super().execute(context)
        finally:
            noted("execute", began)

    def execute_complete(self, context: Any, event: Any = None) -> Any:
        began = time.perf_counter(), time.process_time()
        try:
            return super().execute_complete(context, event)
        finally:
            noted("execute_complete", began)


class Waits(BaseOperator):
    def __init__(self, *, trial: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.trial = trial

    def execute(self, context: Any) -> None:
        self.defer(trigger=TimeDeltaTrigger(WAIT), method_name="done")

    def done(self, context: Any, event: Any = None) -> None:
        pass


with DAG("bench_trials", schedule=None, params={"count": 1}):
    plan = PlanTrialsOperator(task_id="plan", config=CONFIG)
    TimedTrial.partial(task_id="trial", deferrable=True).expand(trial=plan.output)

with DAG("bench_waits", schedule=None, params={"count": 1}):

    @task
    def numbers(params: Any = None) -> list[dict[str, int]]:
        return [{"number": number} for number in range(int(params["count"]))]

    Waits.partial(task_id="trial", retries=3).expand(trial=numbers())
