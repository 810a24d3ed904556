"""DAGs of ``bench_mapped.py``: trials that report one number, as many tasks that only wait, and bare tasks."""

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
STARTS = os.environ.get("BENCH_MAPPED_STARTS", os.devnull)
#: The time that the provider's trigger waits before its first event.
WAIT = timedelta(seconds=12)
#: As large as a trial's result.
RESULT = {
    "experiment_id": 1, "trial_id": 1, "state": "completed", "metric": 0.5, "metrics": {"score": 0.5}, "best_step": 1,
    "steps": 1, "rung": None, "checkpoint": None, "hosts": {"local": []},
}  # fmt: skip
CONFIG = """
name: NAME
entrypoint: python mapped_trial.py ARGUMENTS
model_dir: code
resources: {slots_per_trial: SLOTS}
profiling: {enabled: false}
hyperparameters:
  lr: {type: double, minval: 0, maxval: 1}
searcher:
  {name: random, metric: score, max_trials: {{ params.count }}, trials_per_task: {{ params.per_task }}}
"""


def noted(phase: str, began: tuple[float, float]) -> None:
    """Append the wall-clock and CPU seconds of the provider's code in this task to a file."""
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
    """Airflow's own work for a trial: templated fields, a name, a deferral, a result as XCom."""

    template_fields = TrialOperator.template_fields
    template_fields_renderers = TrialOperator.template_fields_renderers

    def __init__(self, *, trial: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in self.template_fields:
            setattr(self, name, None)
        self.trial = trial

    def execute(self, context: Any) -> None:
        self.defer(trigger=TimeDeltaTrigger(WAIT), method_name="done")

    def done(self, context: Any, event: Any = None) -> dict[str, Any]:
        return dict(RESULT)


for dag_id, arguments, slots in (
    ("bench_trials", "0", 0),
    ("bench_search", "1", 1),
    ("bench_search_torch", "1 torch", 1),
):
    with DAG(dag_id, schedule=None, params={"count": 1, "per_task": 1}):
        config = (
            CONFIG.replace("NAME", dag_id).replace("ARGUMENTS", f"{STARTS} {arguments}").replace("SLOTS", str(slots))
        )
        plan = PlanTrialsOperator(task_id="plan", config=config)
        # Its times are read after a run of bench_trials only.
        operator = TimedTrial if dag_id == "bench_trials" else TrialOperator
        operator.partial(task_id="trial", deferrable=True).expand(trial=plan.output)

with DAG("bench_bare", schedule=None):

    @task
    def first() -> None:
        """Do nothing."""

    @task
    def second() -> None:
        """Do nothing."""

    first() >> second()

with DAG("bench_bare_mapped", schedule=None, params={"count": 1}):

    @task
    def plan_bare(params: Any = None) -> list[int]:
        """Return a number per task."""
        return list(range(int(params["count"])))

    @task
    def note_start(number: int) -> None:
        """Append the time to a file."""
        with open(STARTS, "a") as starts:
            starts.write(f"{time.time()}\n")

    note_start.expand(number=plan_bare())

with DAG("bench_waits", schedule=None, params={"count": 1}):

    @task
    def numbers(params: Any = None) -> list[dict[str, Any]]:
        count = int(params["count"])
        return [{"search_id": 1, "number": n, "hparams": {"lr": 0.5}, "name": f"{n} | lr=0.5"} for n in range(count)]

    Waits.partial(task_id="trial", retries=3, map_index_template="{{ task.trial.name }}").expand(trial=numbers())
