"""Airflow's scheduler and a task that resumes before the scheduler has seen the end of the worker that deferred it.

The result is why triggers wait :data:`EARLIEST_EVENT_S`. When this test fails because a supported Airflow has changed,
that constant may go.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.seed.airflow_side import migrate_metadata

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.nightly]

DAG = """
from airflow.sdk import DAG, BaseOperator

with DAG("late", schedule=None):
    BaseOperator(task_id="one", retries=1)
"""
#: Prints the state of a task instance after the event, by its state before it.
PROGRAM = """
import json, os
from airflow.api.common.trigger_dag import trigger_dag
from airflow.executors.base_executor import BaseExecutor
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.dagbag import DBDagBag
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType

def after(state):
    executor = BaseExecutor(parallelism=4)
    with create_session() as session:
        run = trigger_dag("late", triggered_by=DagRunTriggeredByType.UI, run_id=state, session=session)
        ti = run.get_task_instance("one", session=session)
        ti.state, ti.try_number, ti.next_method, ti.queued_by_job_id = state, 1, "execute_complete", 7
        session.flush()
        # The executor has one key for the worker that deferred the task and for the one that resumes it.
        for _ in ("deferred", "resumed"):
            executor.running.add(ti.key)
        executor.success(ti.key)
        bag = DBDagBag()
        SchedulerJobRunner.process_executor_events(executor=executor, job_id=7, scheduler_dag_bag=bag, session=session)
        session.flush()
        session.refresh(ti)
        return str(ti.state)

states = ("deferred", "scheduled", "queued", "running", "success")
print(json.dumps({state: after(state) for state in states}))
"""


def test_the_scheduler_fails_a_task_that_resumes_before_the_end_of_its_deferral_was_read(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "late.py").write_text(DAG)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment = {
        **kept,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    migrate_metadata(environment)
    run = [sys.executable, "-m", "airflow", "dags", "reserialize"]
    subprocess.run(run, check=True, env=environment, capture_output=True, timeout=300)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, env=environment, capture_output=True, text=True, timeout=300
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "deferred": "deferred",
        "scheduled": "scheduled",
        "queued": "up_for_retry",
        "running": "up_for_retry",
        # A trigger that ends its task itself is never in danger, but no worker shows the result then.
        "success": "success",
    }
