"""Searches with several trials per task under a real scheduler and triggerer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from testbed.netns import missing
from tests.support.cluster import RUN_TIMEOUT_S, Cluster

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.netns,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or ""),
]

DAG, TRIAL = "job_several_trials", "several.trial"
CONFIG = """
entrypoint: python searched.py score {more}
model_dir: code
max_restarts: 0
resources: {{slots_per_trial: 1, pool: gpus}}
searcher: {{name: grid, metric: score, smaller_is_better: false, trials_per_task: {per_task}}}
hyperparameters:
  lr: {{type: double, minval: 0.1, maxval: 1.2, count: {count}}}
"""


def config(more: str = "naps", *, count: int = 12, per_task: int = 4, fails: str = "") -> dict[str, str]:
    """Return the conf of a DAG run."""
    space = f"  fails: {{type: categorical, vals: {fails}}}\n" if fails else ""
    return {"config": CONFIG.format(more=more, count=count, per_task=per_task) + space}


def trials(cluster: Cluster, run_id: str) -> dict[int, list[Any]]:
    """Return number -> its trials, oldest first."""
    found: dict[int, list[Any]] = {}
    for trial in reversed(cluster.store.trials.list(run_id=run_id, limit=None)):
        found.setdefault(trial.number, []).append(trial)
    return found


def states(cluster: Cluster, run_id: str) -> dict[int, list[str]]:
    return {number: [str(trial.state) for trial in several] for number, several in trials(cluster, run_id).items()}


def log(cluster: Cluster, run_id: str, map_index: int, try_number: int = 1) -> list[str]:
    """Return the messages in the log of a task, one line each. The message of an exception follows its record."""
    text = cluster.airflow.log(DAG, run_id, TRIAL, map_index=map_index, try_number=try_number)
    found: list[str] = []
    for line in text.splitlines():
        record = json.loads(line) if line.startswith("{") else {"event": line}
        messages = [record["event"], *(detail["exc_value"] for detail in record.get("error_detail") or ())]
        found += [part for message in messages for part in str(message).split("\n")]
    return found


def running(cluster: Cluster, run_id: str, numbers: set[int]) -> Callable[[], bool]:
    """Return a condition: the newest trials of these numbers run and have reported."""

    def check() -> bool:
        newest = [several[-1] for number, several in trials(cluster, run_id).items() if number in numbers]
        return len(newest) == len(numbers) and all(
            trial.state == "running" and cluster.store.metrics.of_trial(trial.trial_id, "validation")
            for trial in newest
        )

    return check


def test_twelve_trials_in_three_tasks_have_all_results_and_three_logs(cluster: Cluster) -> None:
    state, run_id = cluster.run(DAG, config())
    assert state == "success", states(cluster, run_id)
    names = [one["rendered_map_index"] for one in cluster.tasks(DAG, run_id, TRIAL)]
    assert names == [f"trials {first} to {first + 3} -> 4 completed" for first in (0, 4, 8)]
    best = cluster.airflow.xcom(DAG, run_id, "several.best")
    assert (best["metric"], best["number"], best["trials"]) == (1.2, 11, {"completed": 12})
    of_task = {number: several[0] for number, several in trials(cluster, run_id).items() if 4 <= number < 8}
    assert {trial.key.map_index for trial in of_task.values()} == {1}
    lines = log(cluster, run_id, 1)
    for number, trial in of_task.items():
        mark = f"[trial {trial.trial_id}] "
        own = [line.partition(mark)[2] for line in lines if mark in line]
        assert own[0] == f"--- {number} | lr={trial.hparams['lr']:.3g} ---"
        assert f"[rank 0] my lr is {trial.hparams['lr']}" in own
        assert any(line.startswith("Granted: slots of gpus-") for line in own)
        assert own[-1].endswith(f"-> score {trial.hparams['lr']:.3g} ---")
        assert f"--- The trial ended: score {trial.hparams['lr']:.3g} ---" in own
    unmarked = [line for line in lines if re.search(r"my lr is|Granted|No process|Validation", line)]
    assert all("[trial " in line for line in unmarked)
    cluster.clear(DAG, run_id, [TRIAL, 1])
    assert cluster.airflow.wait(DAG, run_id, timeout_s=RUN_TIMEOUT_S) == "success"
    assert {number: several[0].trial_id for number, several in trials(cluster, run_id).items()} == {
        **{number: several[-1].trial_id for number, several in trials(cluster, run_id).items()},
    }
    assert states(cluster, run_id) == {number: ["completed"] for number in range(12)}
    assert sum("submitted before ---" in line for line in log(cluster, run_id, 1, try_number=2)) == 4


def test_failed_trials_are_named_and_a_clear_repeats_them_alone(cluster: Cluster) -> None:
    state, run_id = cluster.run(DAG, config(count=2, fails="[false, true]"))
    assert state == "success", "the best of the others decides"
    (task,) = cluster.tasks(DAG, run_id, TRIAL)
    assert (task["state"], task["try_number"]) == ("failed", 1)
    failed = [several[0] for several in trials(cluster, run_id).values() if several[0].state == "errored"]
    text = "\n".join(log(cluster, run_id, 0))
    causes = [
        rf"trial {trial.trial_id} \({trial.number} \| fails=true lr=[\d.]+\): ValueError: cannot go on with lr [^;]+"
        for trial in failed
    ]
    assert re.search(rf"2 of 4 trials failed: {causes[0]}; {causes[1]}", text), text[-3000:]
    assert cluster.airflow.xcom(DAG, run_id, "several.best")["trials"] == {"completed": 2, "errored": 2}
    cluster.clear(DAG, run_id, [TRIAL, 0])
    assert cluster.airflow.wait(DAG, run_id, timeout_s=RUN_TIMEOUT_S) == "success"
    assert states(cluster, run_id) == {0: ["completed"], 1: ["completed"], 2: ["errored"] * 2, 3: ["errored"] * 2}


def test_a_kill_of_one_a_dead_triggerer_and_a_clear_while_the_others_run(cluster: Cluster) -> None:
    run_id = cluster.airflow.trigger(DAG, config("waits", count=4))
    cluster.until(running(cluster, run_id, {0, 1, 2, 3}), "four trials that run")
    first = trials(cluster, run_id)
    cluster.cli("trials", "kill", str(first[0][0].trial_id), "--yes")
    cluster.until(lambda: states(cluster, run_id)[0] == ["killed"], "the kill")
    assert states(cluster, run_id) == {0: ["killed"], 1: ["running"], 2: ["running"], 3: ["running"]}
    before = [cluster.store.attempts.get(first[number][0].attempt_id) for number in (1, 2, 3)]
    cluster.restart_triggerer()

    def is_followed() -> bool:
        after = [cluster.store.attempts.get(view.attempt_id) for view in before]
        return all(
            new.watch > old.watch and "triggerer" in str(new.watcher) for old, new in zip(before, after, strict=True)
        )

    cluster.until(is_followed, "the followers of the next triggerer")
    assert states(cluster, run_id) == {0: ["killed"], 1: ["running"], 2: ["running"], 3: ["running"]}
    assert {several[0].attempts for several in trials(cluster, run_id).values()} == {1}
    cluster.clear(DAG, run_id, [TRIAL, 0])
    ended = {0: ["killed", "running"], 1: ["killed", "running"], 2: ["killed", "running"], 3: ["killed", "running"]}
    cluster.until(lambda: states(cluster, run_id) == ended, "that the cleared task runs all of them again")
    cluster.until(running(cluster, run_id, {0, 1, 2, 3}), "their reports")
    cluster.cli("experiments", "stop", str(first[0][0].experiment_id), "--yes")
    assert cluster.airflow.wait(DAG, run_id, timeout_s=RUN_TIMEOUT_S) == "success", states(cluster, run_id)
    assert states(cluster, run_id) == {number: ["killed", "stopped"] for number in range(4)}
    assert cluster.airflow.xcom(DAG, run_id, "several.best")["trials"] == {"stopped": 4}
    assert cluster.processes(r"searched\.py") == []


def test_a_task_that_a_user_marks_as_failed_ends_all_of_its_trials(cluster: Cluster) -> None:
    run_id = cluster.airflow.trigger(DAG, config("waits", count=3, per_task=3))
    cluster.until(running(cluster, run_id, {0, 1, 2}), "three trials that run")
    cluster.airflow.set_task_state(DAG, run_id, f"{TRIAL}/0", "failed")
    cluster.until(lambda: set(map(tuple, states(cluster, run_id).values())) == {("killed",)}, "the end of all")
    cluster.until(lambda: cluster.processes(r"searched\.py") == [], "the end of their processes", 60)
    assert cluster.airflow.wait(DAG, run_id, timeout_s=RUN_TIMEOUT_S) == "failed"
