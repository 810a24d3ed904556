"""A search whose Airflow is killed midway ends with its planned trials, each exactly once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.store.records.trials import TrialView
from testbed.netns import missing
from tests.faults.stage import Stage, staged

pytestmark = [
    pytest.mark.netns,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.skipif(bool(missing()), reason=missing() or ""),
]

HERE = Path(__file__).parent
TRIAL = "experiment.trial"
#: Eight trials on six slots. A trial that the searcher does not stop runs 60 steps of 0.4 s.
CONFIG = """
entrypoint: python rungs.py 60 0.4
model_dir: code
max_restarts: 5
resources: {slots_per_trial: 1, pool: gpus}
hyperparameters:
  quality: {type: double, minval: 0, maxval: 1}
searcher:
  {name: async_halving, num_rungs: 3, divisor: 2, max_length: 60, max_trials: 8, metric: quality,
   smaller_is_better: false}
"""


class SearchStage(Stage):
    """Airflow, hosts, and one search at a time."""

    def begin(self, dag_id: str = "searched") -> tuple[str, list[dict[str, Any]]]:
        """Return the id of a DAG run and its plan, once the first trial has reached a rung."""
        run_id = self.airflow.trigger(dag_id, {"config": CONFIG})
        plan = self.until(lambda: self._plan(dag_id, run_id), f"the plan of {run_id}")
        self.until(lambda: self.store.searches.rung_entries(plan[0]["search_id"]), f"a first report in {run_id}", 600)
        return run_id, plan

    def _plan(self, dag_id: str, run_id: str) -> Any:
        state = self.airflow.task(dag_id, run_id, "experiment.plan")["state"]
        return self.airflow.xcom(dag_id, run_id, "experiment.plan") if state == "success" else None

    def trials(self, run_id: str) -> list[TrialView]:
        return sorted(self.store.trials.list(run_id=run_id, limit=None), key=lambda view: view.number)

    def ended_as_planned(self, run_id: str, plan: list[dict[str, Any]], dag_id: str = "searched") -> None:
        """Assert that the search ended with the trials of its plan, each once, and left no processes or slots."""
        self.ends(run_id, "success", dag_id)
        views = self.trials(run_id)
        assert [(view.number, view.hparams) for view in views] == [(one["number"], one["hparams"]) for one in plan]
        assert {view.state for view in views} <= {"completed", "stopped"}, self.describe()
        assert [view.restarts for view in views] == [0] * len(plan), "no restart counts as a failure of the user's code"
        entries = self.store.searches.rung_entries(plan[0]["search_id"])
        assert set(Counter((one.trial_id, one.rung) for one in entries).values()) == {1}
        assert {one.trial_id for one in entries} == {view.trial_id for view in views}
        best = self.airflow.xcom(dag_id, run_id, "experiment.best")
        assert best["hparams"]["quality"] == max(view.hparams["quality"] for view in views)
        assert sum(best["trials"].values()) == len(plan)
        self.until(lambda: not self.holders(), "the end of every process", 120)
        self.until(lambda: not self.held(), "free slots", 120)
        assert self.checker.violations == []

    def _task_id(self, dag_id: str, run_id: str) -> str:
        """Return the id of a mapped task instance that a worker is running."""
        for view in self.trials(run_id):
            found = self.airflow.task(dag_id, run_id, TRIAL, view.key.map_index)
            if found["state"] == "running":
                return str(found["id"])
        raise AssertionError("no trial runs in a worker")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchStage]:
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    (dags / "code").mkdir()
    shutil.copy(HERE / "dags" / "searches.py", dags)
    shutil.copy(HERE.parent / "jobs" / "code" / "rungs.py", dags / "code")
    with staged(SearchStage, home, dags) as stage:
        yield stage


@pytest.mark.parametrize("part", ["triggerer", "scheduler", "api-server"])
def test_a_search_outlives_a_part_of_airflow(stage: SearchStage, part: str) -> None:
    run_id, plan = stage.begin()
    stage.kill_part(part)
    stage.start_part(part)
    stage.ended_as_planned(run_id, plan)


def test_a_search_outlives_a_worker(stage: SearchStage) -> None:
    run_id, plan = stage.begin("searched_in_worker")
    stage.kill_worker("searched_in_worker", run_id)
    stage.ended_as_planned(run_id, plan, "searched_in_worker")
