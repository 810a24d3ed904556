"""The owner of an experiment, as a task of a real Airflow sees it: API, command, parent run, schedule, backfill."""

from __future__ import annotations

import getpass
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.roles import role_options
from testbed.standalone import Standalone, wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.nightly]

DAGS = """
import pendulum
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, get_current_context, task
from airflow_provider_dtrain.hooks.tasks import owner_of

@task
def owner():
    return owner_of(get_current_context())

START = pendulum.datetime(2026, 1, 1)
with DAG("owned", schedule=None, default_args={"owner": "team"}):
    owner()
with DAG("timed", schedule="@once", start_date=START, is_paused_upon_creation=True, default_args={"owner": "team"}):
    owner()
with DAG("daily", schedule="@daily", start_date=START, catchup=False, end_date=START, default_args={"owner": "team"}):
    owner()
with DAG("ownerless", schedule="@once", start_date=START, is_paused_upon_creation=True):
    owner()
with DAG("parent", schedule=None, default_args={"owner": "team"}):
    TriggerDagRunOperator(task_id="start", trigger_dag_id="owned", trigger_run_id="child")
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder: Path = tmp_path_factory.mktemp("owners")
    (folder / "dags").mkdir()
    (folder / "dags" / "owners.py").write_text(DAGS)
    (folder / "home").mkdir()
    found = Standalone(folder / "home", folder / "dags", role_options(folder / "home"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


def owner(airflow: Standalone, dag_id: str, run_id: str) -> Any:
    state = airflow.wait(dag_id, run_id)
    assert state == "success", airflow.log(dag_id, run_id, "owner")
    return airflow.xcom(dag_id, run_id, "owner")


def airflow_dags(airflow: Standalone) -> set[str]:
    return {dag["dag_id"] for dag in airflow.api("GET", "/dags?limit=100")["dags"]}


def only_run(airflow: Standalone, dag_id: str) -> str:
    # Its DAG is paused until now, because a scheduler may start tasks before the API server answers them.
    wait_until(lambda: dag_id in airflow_dags(airflow), timeout_s=120, what=dag_id)
    airflow.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})
    runs = wait_until(lambda: airflow.api("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"], timeout_s=120, what=dag_id)
    return str(runs[0]["dag_run_id"])


def command(airflow: Standalone, *argv: str) -> None:
    run = [sys.executable, "-m", "airflow", *argv]
    done = subprocess.run(run, env=airflow.environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_user_of_the_api_owns_a_run_and_the_runs_that_it_triggers(airflow: Standalone) -> None:
    airflow.log_in("op")
    assert owner(airflow, "owned", airflow.trigger("owned")) == "op"
    assert airflow.wait("parent", airflow.trigger("parent")) == "success"
    assert owner(airflow, "owned", "child") == "op"
    assert airflow.page("GET", "/me")["user"] == "op"


def test_the_user_of_the_operating_system_owns_a_run_of_a_command(airflow: Standalone) -> None:
    command(airflow, "dags", "trigger", "owned", "--run-id", "by-command")
    assert owner(airflow, "owned", "by-command") == getpass.getuser()


def test_the_owner_of_the_task_owns_a_scheduled_run(airflow: Standalone) -> None:
    assert owner(airflow, "timed", only_run(airflow, "timed")) == "team"
    assert owner(airflow, "ownerless", only_run(airflow, "ownerless")) == "airflow"


def test_the_user_of_a_backfill_owns_its_runs(airflow: Standalone) -> None:
    airflow.log_in("op")
    body = {"dag_id": "daily", "from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-01T00:00:00Z"}
    airflow.api("POST", "/backfills", {**body, "reprocess_behavior": "none", "dag_run_conf": {}, "max_active_runs": 1})
    assert owner(airflow, "daily", only_run(airflow, "daily")) == "op"
