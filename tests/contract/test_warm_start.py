"""Imports at the start of a component of Airflow, which save work in the tasks that it forks."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from airflow_provider_dtrain.hosts import payload
from airflow_provider_dtrain.plugins import listener
from airflow_provider_dtrain.store.store import Store


class Job:
    """Stand-in for the job that Airflow passes when a component starts."""


CODE = Path(__file__).parents[1] / "jobs"
#: A parent that starts as Airflow's parts do; a plan and a trial in children that it forks.
FORKS = """
import json, os, sys
from types import SimpleNamespace
from airflow_provider_dtrain.plugins import listener
class Job: pass
listener.on_starting(Job())
from airflow.sdk.exceptions import TaskDeferred
from airflow_provider_dtrain.operators.search import PlanTrialsOperator
from airflow_provider_dtrain.operators.trial import TrialOperator

folder, config = json.loads(sys.argv[1])

def context(task_id, map_index=-1):
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id=task_id, map_index=map_index, max_tries=0)
    return {"ti": ti, "dag": SimpleNamespace(fileloc=folder + "/dag.py"), "outlet_events": {}}

def trial(planned):
    known = set(sys.modules)
    try:
        TrialOperator(task_id="trial", trial=planned, deferrable=True).execute(context("trial", planned["number"]))
        is_deferred = False
    except TaskDeferred:
        is_deferred = True
    new = sorted(set(sys.modules) - known)
    return {"new": new, "is_deferred": is_deferred}

def forked(work):
    reads, writes = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writes, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        return json.load(pipe)

planned = forked(lambda: PlanTrialsOperator(task_id="plan", config=config).execute(context("plan")))
print("FOUND " + json.dumps([forked(lambda: trial(one)) for one in planned]))
"""
CONFIG = {
    "name": "forked",
    "entrypoint": "python searched.py score",
    "model_dir": "code",
    "resources": {"slots_per_trial": 0},
    "searcher": {"name": "random", "metric": "score", "max_trials": 2},
    "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}},
}


def test_a_forked_task_imports_nothing(url: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN": url,
        "AIRFLOW__DTRAIN__REMOTE_DIR": str(tmp_path / "remote"),
    }
    command = [sys.executable, "-c", FORKS, json.dumps([str(CODE), CONFIG])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    lines = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout + done.stderr
    assert json.loads(lines[0]) == [{"new": [], "is_deferred": False}, {"new": [], "is_deferred": True}]
    store = Store.open(url)
    try:
        found = {trial.number: (trial.state, trial.experiment) for trial in store.trials.list()}
        assert found == {0: ("completed", "forked"), 1: ("queued", "forked")}
    finally:
        store.close()


@pytest.mark.parametrize("wrong", ["mysql://db/dtrain", "postgresql+nothing://db/dtrain", "not a url"])
def test_a_store_that_is_configured_wrongly_stops_no_part_of_airflow(
    wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN", wrong)
    with caplog.at_level(logging.WARNING):
        listener.on_starting(Job())
    assert "The provider's store is not configured correctly" in caplog.text


def test_a_module_that_cannot_be_imported_stops_no_part_of_airflow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "NEEDED_BY_TASKS", ("airflow_provider_dtrain.nothing",))
    with caplog.at_level(logging.WARNING):
        listener.on_starting(Job())
    assert "airflow_provider_dtrain.nothing cannot be imported" in caplog.text


def test_archives_for_hosts_are_packed_before_the_first_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    payload.supervisor.cache_clear()
    payload.library.cache_clear()
    listener.on_starting(Job())
    monkeypatch.setattr(payload, "packed", lambda entries: pytest.fail("packed in the task"))
    assert payload.library().digest != payload.supervisor().digest


def test_an_archive_that_cannot_be_packed_stops_no_part_of_airflow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise PackageNotFoundError("nvidia-ml-py")

    monkeypatch.setattr(payload, "supervisor", missing)
    with caplog.at_level(logging.WARNING):
        listener.on_starting(Job())
    assert "The archives for hosts cannot be packed" in caplog.text
    assert "nvidia-ml-py" in caplog.text


@pytest.mark.nightly
def test_a_task_of_anybody_pays_nothing() -> None:
    """Airflow calls the listener in every task, with ``TaskRunnerMarker``."""
    code = (
        "import sys\n"
        "from airflow.sdk.execution_time.task_runner import TaskRunnerMarker\n"
        "from airflow_provider_dtrain.plugins import listener\n"
        "listener.on_starting(TaskRunnerMarker())\n"
        "print(any(name in sys.modules for name in listener.NEEDED_BY_TASKS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_the_parts_of_airflow_hand_over_a_job() -> None:
    """The listener compares with Airflow's own class name."""
    from airflow.jobs.job import Job as OfAirflow

    assert OfAirflow.__name__ == "Job"
