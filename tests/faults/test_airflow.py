"""Faults of Airflow itself: killed processes, and users who change waiting or running tasks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    shutil.copytree(HERE / "dags", dags, dirs_exist_ok=True)
    shutil.copytree(HERE / "code", dags / "code")
    with staged(Stage, home, dags, AIRFLOW__DTRAIN__KILL_GRACE_S="2") as stage:
        yield stage


@pytest.fixture(autouse=True)
def all_parts(stage: Stage) -> None:
    stage.restart_dead_parts()


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
    assert stage.trial(trial).restarts == 0, "no restart counts as a failure of the user's code"
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
    runs = [stage.start("deferred", slots=slots, until=60) for slots in (4, 2, 2)]
    trials = [stage.trial_of(run_id).trial_id for run_id in runs]
    for run_id in runs:
        stage.ends(run_id, "success")
    stage.is_clean(dict.fromkeys(trials, "completed"))
