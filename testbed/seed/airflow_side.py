"""The Airflow side of a seeded store: DAGs, DAG runs and task instances in the metadata database of AIRFLOW_HOME."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from airflow_provider_dtrain.core.lifecycle.states import TRIAL_LIVE
from airflow_provider_dtrain.core.search.names import trial_name
from airflow_provider_dtrain.store.records.trials import TrialView
from airflow_provider_dtrain.store.store import Store

#: A DAG file with the operators of the package, so that their links are there. Its tasks never run.
DAG_FILE = '''\
"""DAGs of a seeded store. Their runs exist already, and no task runs."""

import json

from airflow.sdk import DAG

from airflow_provider_dtrain.dags import experiment_dag
from airflow_provider_dtrain.operators.search import PlanTrialsOperator, SelectBestTrialOperator
from airflow_provider_dtrain.operators.trial import TrialOperator
from airflow_provider_dtrain.sensors.gang import GangSensor

#: Experiments can be started and forked.
dag = experiment_dag()

for dag_id, tasks in json.loads({site!r}).items():
    with DAG(dag_id, schedule=None, tags=["seeded"], is_paused_upon_creation=False):
        for task_id, count in tasks.items():
            if count == 0:
                GangSensor(task_id=task_id, slots=1, deferrable=True)
            elif count is None:
                TrialOperator(task_id=task_id, config="experiment.yaml", deferrable=True)
            else:
                plan = PlanTrialsOperator(task_id="plan", config="experiment.yaml")
                numbers = [{{"number": number}} for number in range(count)]
                trials = TrialOperator.partial(task_id=task_id, deferrable=True).expand(trial=numbers)
                plan >> trials >> SelectBestTrialOperator(task_id="best", plan=plan.output)
'''
#: State of a trial -> state of its task instance.
STATES = {
    "queued": "deferred", "running": "deferred", "paused": "deferred", "completed": "success", "stopped": "success",
    "errored": "failed", "killed": "failed",
}  # fmt: skip


@dataclass
class RunOf:
    """A DAG run, with its trials by task and map index, and its tasks that hold gangs."""

    dag_id: str
    run_id: str
    started_at: datetime
    trials: dict[tuple[str, int], TrialView] = field(default_factory=dict)
    gangs: set[str] = field(default_factory=set)

    @property
    def state(self) -> str:
        states = {trial.state for trial in self.trials.values()}
        if states & set(TRIAL_LIVE) or self.gangs:
            return "running"
        return "success" if states & {"completed", "stopped"} else "failed"


def seed_airflow(store: Store) -> None:
    """Write the DAGs of a store's trials into the DAGs folder, and their runs into the metadata database.

    AIRFLOW_HOME and the variables ``AIRFLOW__...`` of this process name both.
    """
    from airflow.configuration import conf

    runs = _runs_of(store)
    folder = Path(conf.get("core", "dags_folder"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "seeded_site.py").write_text(DAG_FILE.format(site=json.dumps(_dags_of(runs))))
    # Code of experiments that users start on the page.
    (folder / "train.py").touch()
    migrate_metadata(os.environ)
    _serialize_dags()
    for run in runs:
        _create(store, run)


def migrate_metadata(environment: Mapping[str, str]) -> None:
    """Migrate the metadata database of an AIRFLOW_HOME, unless another process does or did.

    :param environment: variables of the Airflow
    """
    home = Path(environment["AIRFLOW_HOME"])
    migrated = home / "migrated"
    with (home / "migration.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if migrated.exists():
            return
        run = [sys.executable, "-m", "airflow", "db", "migrate"]
        done = subprocess.run(run, capture_output=True, text=True, env=dict(environment), stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"airflow db migrate: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        migrated.touch()


def _serialize_dags() -> None:
    """Do what ``airflow dags reserialize`` does, in this process, which has imported Airflow already."""
    from airflow.cli.cli_parser import get_parser

    arguments = get_parser().parse_args(["dags", "reserialize"])
    arguments.func(arguments)


def _runs_of(store: Store) -> list[RunOf]:
    found: dict[tuple[str, str], RunOf] = {}
    for trial in reversed(store.trials.list(limit=None)):
        key = trial.key
        run = found.setdefault((key.dag_id, key.run_id), RunOf(key.dag_id, key.run_id, trial.created_at))
        run.trials[key.task_id, key.map_index] = trial
    for gang in store.queue_view.tasks():
        key = gang.key
        if (key.dag_id, key.run_id) not in found:
            found[key.dag_id, key.run_id] = RunOf(key.dag_id, key.run_id, gang.since)
        if gang.experiment_id is None:
            found[key.dag_id, key.run_id].gangs.add(key.task_id)
    return list(found.values())


def _dags_of(runs: list[RunOf]) -> dict[str, dict[str, int | None]]:
    """Return DAG -> task -> number of its instances, None for a task that is not mapped, 0 for one with a gang."""
    found: dict[str, dict[str, int | None]] = {}
    for run in runs:
        for task_id, index in run.trials:
            tasks = found.setdefault(run.dag_id, {})
            tasks[task_id] = None if index < 0 else max(tasks.get(task_id) or 0, index + 1)
        found.setdefault(run.dag_id, {}).update(dict.fromkeys(run.gangs, 0))
    return found


def _create(store: Store, run: RunOf) -> None:
    """Create a DAG run with its task instances, in the states of its trials."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType

    with create_session() as session:
        created = trigger_dag(
            run.dag_id, triggered_by=DagRunTriggeredByType.UI, triggering_user_name="admin", run_id=run.run_id,
            run_after=run.started_at, logical_date=run.started_at, session=session,
        )  # fmt: skip
        created.state, created.start_date = run.state, run.started_at
        ended = [trial.ended_at for trial in run.trials.values()]
        created.end_date = None if run.state == "running" else max(at for at in ended if at is not None)
        for instance in created.get_task_instances(session=session):
            trial = run.trials.get((instance.task_id, instance.map_index))
            instance.start_date = run.started_at
            if trial is not None:
                instance.state, instance.end_date = STATES[trial.state], trial.ended_at
                instance.try_number = 1
                if instance.map_index >= 0:
                    space = store.configs.get(trial.config_id).document.get("hyperparameters")
                    instance._rendered_map_index = trial_name(trial.number, trial.hparams, space)[:250]
            elif instance.task_id in run.gangs:
                instance.state = "deferred"
            elif instance.task_id == "plan" or created.end_date is not None:
                instance.state, instance.end_date = "success", created.end_date or run.started_at
