"""The tasks of a search in a worker, on this machine: no scheduler, real ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, AssetAlias

from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.operators.search import PlanTrialsOperator, SelectBestTrialOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from testbed.stores import new_sqlite
from tests.support.engines import CODE, register

GRID = {"name": "grid", "metric": "score", "smaller_is_better": False}
RANDOM = {**GRID, "name": "random", "max_trials": 4}
LR = {"type": "double", "minval": 0.1, "maxval": 0.3, "count": 3}


def config(searcher: dict[str, Any] | None = None, *, says: str = "score", **hyperparameters: Any) -> dict[str, Any]:
    return {
        "name": "searched",
        "entrypoint": f"python searched.py {says}",
        "model_dir": "code",
        "max_restarts": 0,
        "resources": {"slots_per_trial": 1},
        "searcher": searcher or GRID,
        "hyperparameters": {"lr": LR, **hyperparameters},
    }


class Events(dict[AssetAlias, Any]):
    """Stand-in for the mapping that Airflow passes to a task for the events of its outlets."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, str, dict[str, Any]]] = []

    def __missing__(self, alias: AssetAlias) -> Any:
        return SimpleNamespace(add=lambda asset, extra: self.sent.append((alias.name, asset.uri, extra)))


class Run:
    """The tasks of one DAG run, called one after the other.

    :param run_id: of the DAG run
    """

    def __init__(self, run_id: str = "run") -> None:
        self.run_id, self.events = run_id, Events()
        self.best_task: SelectBestTrialOperator | None = None

    def context(self, task_id: str, map_index: int = -1, max_tries: int = 0) -> Any:
        ti = SimpleNamespace(
            dag_id="dag", run_id=self.run_id, task_id=task_id, map_index=map_index, max_tries=max_tries
        )
        dag = DAG("dag", schedule=None)
        dag.fileloc = str(CODE / "dag.py")
        return {"ti": ti, "dag": dag, "outlet_events": self.events}

    def plan(self, document: Any, *, max_tries: int = 0, task_id: str = "plan", **options: Any) -> list[dict[str, Any]]:
        task = PlanTrialsOperator(task_id=task_id, config=document, **options)
        planned = task.execute(self.context(task_id, max_tries=max_tries))
        return list(json.loads(json.dumps(planned, allow_nan=False)))

    def trial(self, spec: dict[str, Any], *, max_tries: int = 0) -> dict[str, Any]:
        task = TrialOperator(task_id="trial", trial=spec, deferrable=False)
        result = task.execute(self.context("trial", spec["number"], max_tries))
        assert result is not None
        return result

    def best(self, plan: Any, *, max_tries: int = 0) -> dict[str, Any]:
        self.best_task = SelectBestTrialOperator(task_id="best", plan=plan)
        return self.best_task.execute(self.context("best", max_tries=max_tries))


@contextmanager
def local_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DtrainHook]:
    """Yield the hook that tasks of this process use, with this machine as the only host."""
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {"SQL_ALCHEMY_CONN": new_sqlite(tmp_path / "dtrain.db"), "CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    for name, value in {**options, "KILL_GRACE_S": "2"}.items():
        monkeypatch.setenv(f"AIRFLOW__DTRAIN__{name}", value)
    hook = DtrainHook()
    hook.links.close_all()
    register(hook, tmp_path / "state")
    yield hook
    hook.links.close_all()
