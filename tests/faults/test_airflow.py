"""What happens to Airflow itself: its processes are killed, and people change tasks that wait or run."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.hooks.hosts import host_record_from_facts
from airflow_provider_dtrain.hosts.remote import HostAddress
from tests.faults.stage import ORPHAN_TIMEOUT_S, Stage
from tests.netns import NamespaceHosts, missing
from tests.netns.transport import ssh_to
from tests.support.standalone import Standalone

pytestmark = [
    pytest.mark.netns,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.skipif(bool(missing()), reason=missing() or ""),
]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    shutil.copytree(HERE / "dags", dags, dirs_exist_ok=True)
    shutil.copytree(HERE / "code", dags / "code")
    with NamespaceHosts(count=3, slots=2) as hosts:
        variables = {f"AIRFLOW_CONN_{host.name.upper().replace('-', '_')}": host.airflow_conn() for host in hosts}
        variables |= {
            "AIRFLOW__DTRAIN__ORPHAN_TIMEOUT": str(ORPHAN_TIMEOUT_S),
            "AIRFLOW__DTRAIN__KILL_GRACE_S": "2",
            # A scheduler looks for the tasks of a dead one each five minutes.
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
        }
        stage = Stage(Standalone(home, dags, variables), hosts)
        try:
            stage.airflow.start()
            register(stage)
            yield stage
        finally:
            stage.close()
            stage.airflow.stop()


@pytest.fixture(autouse=True)
def all_parts(stage: Stage) -> None:
    stage.restart_dead_parts()


def register(stage: Stage) -> None:
    for host in stage.hosts:
        address = HostAddress(
            name=host.name, remote_dir=".dtrain", state_dir=None, python=sys.executable,
            make_transport=lambda host=host: ssh_to(host),
        )  # fmt: skip
        link = stage.hook.links.get(address)
        record = host_record_from_facts(
            host.name, pool="gpus", conn_id=host.name.replace("-", "_"), facts=link.call("probe").result(120),
            hello=link.hello, slots="cpu:2", remote_dir=".dtrain", python=sys.executable,
        )  # fmt: skip
        stage.store.add_host(record)
    stage.hook.links.close_all()


@pytest.mark.parametrize("new_state", ["failed", "success"])
def test_a_deferred_task_that_a_person_marks_leaves_nothing_behind(stage: Stage, new_state: str) -> None:
    run_id = stage.start("deferred")
    trial = stage.trial_of(run_id).trial_id
    stage.running(trial)
    stage.deferred(run_id)
    stage.airflow.set_task_state("deferred", run_id, "train", new_state)
    stage.is_clean({trial: "killed"})


def test_a_deferred_task_that_a_person_clears_ends_its_gang_before_the_next_one_starts(stage: Stage) -> None:
    run_id = stage.start("deferred", slots=6, until=600)
    old = stage.trial_of(run_id).trial_id
    stage.running(old)
    stage.deferred(run_id)
    body = {"dag_run_id": run_id, "task_ids": ["train"], "dry_run": False, "only_failed": False}
    stage.airflow.api("POST", "/dags/deferred/clearTaskInstances", body)
    new = stage.trial_of(run_id, after=old).trial_id
    stage.running(new)
    assert stage.holders(old) == []
    stage.ends(run_id, "success")
    assert stage.trial(new).attempts == 1
    stage.is_clean({old: "killed", new: "completed"})


def test_the_retry_after_a_killed_worker_follows_the_same_gang(stage: Stage) -> None:
    run_id = stage.start("in_worker", until=2000)
    trial = stage.trial_of(run_id).trial_id
    ranks, watch = stage.running(trial), stage.followed(trial, "worker").watch
    stage.kill_worker("in_worker", run_id)
    stage.followed(trial, "worker", after=watch)
    assert {one.pid for one in stage.holders(trial)} == ranks
    stage.ends(run_id, "success", "in_worker")
    assert stage.trial(trial).attempts == 1
    stage.is_clean({trial: "completed"})


@pytest.mark.parametrize("part", ["scheduler", "triggerer", "api-server"])
def test_a_killed_part_of_airflow_that_comes_back_costs_nothing_but_time(stage: Stage, part: str) -> None:
    run_id = stage.start("deferred", until=1200)
    trial = stage.trial_of(run_id).trial_id
    ranks, view = stage.running(trial), stage.deferred(run_id)
    killed_at = time.monotonic()
    stage.kill_part(part)
    stage.start_part(part)
    if part == "triggerer":
        stage.followed(trial, "triggerer", after=view.watch)
        print(f"followed again {time.monotonic() - killed_at:.0f} s after the triggerer was killed")
        assert {one.pid for one in stage.holders(trial)} == ranks
    stage.ends(run_id, "success")
    assert stage.trial(trial).attempts == 1
    stage.is_clean({trial: "completed"})


@pytest.mark.parametrize("alone", [True, False])
def test_a_scheduler_that_is_killed_while_a_worker_follows_fails_no_trial(stage: Stage, alone: bool) -> None:
    run_id = stage.start("in_worker", until=1500)
    trial = stage.trial_of(run_id).trial_id
    stage.running(trial)
    stage.kill_part("scheduler", alone=alone)
    stage.start_part("scheduler")
    stage.ends(run_id, "success", "in_worker")
    assert stage.trial(trial).restarts == 0, "nobody's code was at fault"
    stage.is_clean({trial: "completed"})


def test_a_dag_that_is_deleted_while_its_tasks_wait_and_run_leaves_nothing_behind(stage: Stage) -> None:
    runs = [stage.start("deleted", slots=6), stage.start("deleted", slots=6)]
    trials = [stage.trial_of(run_id).trial_id for run_id in runs]
    for run_id in runs:
        stage.deferred(run_id, "deleted")
    first, second = sorted(trials, key=lambda trial: stage.attempt(trial).state == "waiting")
    stage.running(first)
    assert stage.attempt(second).state == "waiting"
    stage.airflow.api("DELETE", "/dags/deleted")
    stage.is_clean({first: "killed", second: "killed"})


def test_two_dag_runs_that_fight_for_the_last_slot_both_get_it(stage: Stage) -> None:
    runs = [stage.start("deferred", slots=slots, until=60) for slots in (5, 2, 6)]
    trials = [stage.trial_of(run_id).trial_id for run_id in runs]
    for run_id in runs:
        stage.ends(run_id, "success")
    stage.is_clean(dict.fromkeys(trials, "completed"))
