"""Searches under a real scheduler, on three real hosts (network namespaces) with two CPU slots each."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.store.records.searches import ExperimentView
from airflow_provider_dtrain.store.store import Store
from testbed.netns import missing
from tests.support.cluster import RUN_TIMEOUT_S, Cluster

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.netns,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or ""),
]

ROOT = Path(__file__).parents[2]
#: Three trials without torch, one at a time, that take some seconds each.
GRID = """
entrypoint: python searched.py score {more}
model_dir: code
max_restarts: 0
resources: {{slots_per_trial: 1, pool: gpus}}
searcher: {{name: grid, metric: score, smaller_is_better: false, max_concurrent_trials: 1}}
hyperparameters:
  lr: {{type: double, minval: 0.1, maxval: {most}, count: 3}}
"""


def grid(most: float, more: str = "") -> str:
    """Return the configuration.

    :param most: largest of the three values, and so the best score
    :param more: arguments of the program
    """
    return GRID.format(most=most, more=more)


def names(tasks: list[dict[str, Any]]) -> list[str]:
    """Return the names of mapped tasks without their results."""
    return [one["rendered_map_index"].partition(" -> ")[0] for one in tasks]


def test_two_experiments_in_one_dag_run_and_only_a_better_one_is_announced(cluster: Cluster) -> None:
    run_id = cluster.airflow.trigger("job_searches", {"config": grid(0.3)})
    wanted = ["0 | lr=0.1", "1 | lr=0.2", "2 | lr=0.3"]
    waiting = cluster.until(lambda: _named_while_it_waits(cluster, run_id), "a trial that waits under its name")
    assert waiting["rendered_map_index"] in wanted
    assert cluster.airflow.wait("job_searches", run_id, timeout_s=RUN_TIMEOUT_S) == "success", _logs(cluster, run_id)
    for group in ("first", "second"):
        assert names(cluster.tasks("job_searches", run_id, f"{group}.trial")) == wanted
        best = cluster.airflow.xcom("job_searches", run_id, f"{group}.best")
        assert (best["metric"], best["hparams"], best["trials"]) == (0.3, {"lr": 0.3}, {"completed": 3})
        assert _most_at_once(cluster.store, best["experiment_id"]) == 1, "max_concurrent_trials"
    for trial in cluster.store.trials.list(run_id=run_id):
        kinds = {entry.kind for entry in cluster.store.timeline.of_trial(trial.trial_id)}
        assert TimelineKind.RETURNED not in kinds, "its slots were granted before its trigger ran"
    ran = cluster.until(lambda: cluster.runs("job_new_best"), "a run on a new best", 120)
    assert cluster.airflow.wait("job_new_best", ran[0]["dag_run_id"]) == "success"
    assert cluster.airflow.xcom("job_new_best", ran[0]["dag_run_id"], "best") == [0.3]
    worse, better = (cluster.airflow.trigger("job_searches", {"config": grid(most)}) for most in (0.2, 0.4))
    for run in (worse, better):
        assert cluster.airflow.wait("job_searches", run, timeout_s=RUN_TIMEOUT_S) == "success", _logs(cluster, run)
    ran = cluster.until(lambda: [*cluster.runs("job_new_best")][1:], "a run on a better one", 120)
    log = cluster.airflow.log("job_searches", worse, "first.best")
    told = [cluster.airflow.xcom("job_searches", run, "first.best")["metric"] for run in (worse, better)]
    assert told == [0.2, 0.4]
    assert "no new best" in log
    assert len(cluster.runs("job_new_best")) == 2


def test_a_cleared_trial_runs_again_alone_and_a_cleared_plan_is_a_new_generation(cluster: Cluster) -> None:
    state, run_id = cluster.run("job_searches", {"config": grid(0.3)})
    assert state == "success", _logs(cluster, run_id)
    experiment_id = cluster.airflow.xcom("job_searches", run_id, "first.best")["experiment_id"]
    old = {one.number: one for one in cluster.store.trials.list(experiment_id=experiment_id, limit=None)}
    cluster.clear("job_searches", run_id, ["first.trial", 1])
    assert cluster.airflow.wait("job_searches", run_id, timeout_s=RUN_TIMEOUT_S) == "success", _logs(cluster, run_id)
    trials = cluster.store.trials.list(experiment_id=experiment_id, limit=None)
    (new,) = [one for one in trials if one.trial_id not in {found.trial_id for found in old.values()}]
    assert (new.number, new.hparams, new.seed) == (1, old[1].hparams, old[1].seed)
    assert cluster.airflow.xcom("job_searches", run_id, "first.best")["trials"] == {"completed": 3}
    cluster.clear("job_searches", run_id, "first.plan")
    assert cluster.airflow.wait("job_searches", run_id, timeout_s=RUN_TIMEOUT_S) == "success", _logs(cluster, run_id)
    best = cluster.airflow.xcom("job_searches", run_id, "first.best")
    assert best["experiment_id"] == experiment_id
    assert cluster.store.searches.get(best["search_id"]).generation == 2
    assert len(cluster.store.searches.history(best["search_id"])) == 3
    listed = cluster.cli("trials", "list", "--experiment", str(experiment_id), "-o", "json").json
    replaced = {one["trial_id"]: one["reason"] for one in listed}
    assert [replaced.pop(one.trial_id) for one in cluster.store.searches.history(best["search_id"])] == [None] * 3
    assert set(replaced.values()) == {"its experiment was planned anew"}


def test_a_plan_that_is_wrong_starts_nothing(cluster: Cluster) -> None:
    state, run_id = cluster.run("job_searches", {"config": grid(0.3).replace("count: 3", "")})
    assert state == "failed"
    assert "hyperparameters.lr.count: missing; a grid requires it" in cluster.airflow.log(
        "job_searches", run_id, "first.plan"
    )
    assert "has not succeeded" in cluster.airflow.log("job_searches", run_id, "first.best")
    assert [one for one in cluster.store.trials.list(limit=None) if one.key.run_id == run_id] == []


@pytest.mark.each_change
def test_an_experiment_needs_no_dag_of_ones_own(cluster: Cluster, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "jobs" / "code", tmp_path / "code")
    (tmp_path / "good.yaml").write_text("name: by-hand" + grid(0.3))
    (tmp_path / "bad.yaml").write_text(grid(0.3).replace("count: 3", ""))
    early = cluster.commands.run("dtrain", "experiments", "create", str(tmp_path / "good.yaml"), "--dag", "absent")
    assert (early.code, "no DAG absent" in early.err) == (3, True)
    cluster.cli("init")
    cluster.until(lambda: cluster.commands.run("dags", "details", "dtrain_experiment").code == 0, "the DAG", 180)
    bad = cluster.commands.run("dtrain", "e", "create", str(tmp_path / "bad.yaml"))
    assert (bad.code, "hyperparameters.lr.count: missing" in bad.err) == (1, True)
    other = cluster.commands.run("dtrain", "e", "create", str(tmp_path / "good.yaml"), "--dag", "job_searches")
    assert (other.code, "not made by experiment_dag()" in other.err) == (2, True)
    (tmp_path / "large.yaml").write_text(grid(0.3).replace("slots_per_trial: 1", "slots_per_trial: 64"))
    large = cluster.commands.run("dtrain", "e", "create", str(tmp_path / "large.yaml"))
    assert (large.code, "64 slots can never be granted" in large.err) == (1, True)
    assert cluster.runs("dtrain_experiment") == []
    followed = cluster.cli("experiments", "create", str(tmp_path / "good.yaml"), "--follow", "-o", "json")
    assert (followed.json["name"], followed.json["best"], followed.json["state"]) == ("by-hand", 0.3, "completed")
    assert "3 completed; best score 0.3" in followed.err
    (view,) = cluster.store.experiments.list(dag_id="dtrain_experiment")
    assert "hyperparameters:" in cluster.cli("e", "config", str(view.experiment_id)).out
    listed = cluster.cli("trials", "list", "--experiment", str(view.experiment_id), "--state", "completed")
    assert all(f"lr={value}" in listed.out for value in (0.1, 0.2, 0.3))
    trials = [str(one.trial_id) for one in cluster.store.trials.list(experiment_id=view.experiment_id)]
    made = cluster.cli("trials", "describe", trials[0], "-o", "json").json["provenance"]
    assert made["bundle"] == {"name": "dags-folder", "version": None}
    assert made["git"]["problem"] == "the code is not in a git repository"
    assert [len(made["packages"][one["packages"]]) > 3 for one in made["hosts"]] == [True]
    differs = {one["subject"]: one for one in cluster.cli("trials", "diff", *trials, "-o", "json").json["rows"]}
    assert differs["git"]["is_unknown"]
    assert not {"packages", "code", "interpreter"} & differs.keys()


def test_a_run_of_the_dag_for_operations_reaches_the_hosts(cluster: Cluster) -> None:
    cluster.cli("init")
    cluster.until(lambda: cluster.commands.run("dags", "details", "dtrain_operations").code == 0, "the DAG", 180)
    begun = cluster.airflow.page("POST", "/operations/doctor", {})
    assert (begun["through"], begun["dag_id"]) == ("dag", "dtrain_operations")

    def operation() -> dict[str, Any]:
        found: dict[str, Any] = cluster.airflow.page("GET", f"/operations/{begun['operation_id']}")
        return found

    cluster.until(lambda: operation()["state"] in ("done", "failed"), "the operation", 180)
    assert operation()["error"] is None
    answers = [row for row in operation()["result"]["rows"] if row["message"].startswith("answers; Python")]
    assert len(answers) == len(cluster.store.hosts.list())
    assert all(row["ok"] for row in answers)


def test_an_experiment_is_started_and_forked_on_a_page_and_ends_with_its_results(cluster: Cluster) -> None:
    cluster.cli("init")
    cluster.until(lambda: cluster.airflow.page("GET", "/me")["starting"]["exists"], "the DAG", 180)
    first = _started(cluster, {"config": "name: from-a-page" + grid(0.3)})
    source = cluster.airflow.page("GET", f"/experiments/{first.experiment_id}/fork")
    assert "maxval: 0.3" in source["yaml"]
    edited = source["yaml"].replace("maxval: 0.3", "maxval: 0.6")
    second = _started(cluster, {"config": edited, "fork_of": first.experiment_id})
    assert [(one.name, one.state, one.best, one.trials) for one in (first, second)] == [
        ("from-a-page", "completed", 0.3, {"completed": 3}),
        ("from-a-page", "completed", 0.6, {"completed": 3}),
    ]
    # A run that is triggered by the API of Airflow itself cannot use the configuration and code of another run.
    conf = cluster.airflow.api("GET", f"/dags/dtrain_experiment/dagRuns/{first.run_id}")["conf"]
    assert conf["config"]["config_id"] == cluster.store.submissions.find("dtrain_experiment", first.run_id).config_id
    run_id = cluster.airflow.trigger("dtrain_experiment", conf)
    assert cluster.airflow.wait("dtrain_experiment", run_id, timeout_s=RUN_TIMEOUT_S) == "failed"
    log = cluster.airflow.log("dtrain_experiment", run_id, "experiment.plan")
    assert "is a stored configuration, which needs a right of its user" in log
    assert cluster.store.experiments.list(dag_id="dtrain_experiment", run_id=run_id) == []
    codes = {cluster.store.trial_table.payload(one.experiment_id) for one in (first, second)}
    assert codes == {source["payload_digest"]}
    assert source["payload_digest"]


def _started(cluster: Cluster, body: dict[str, Any]) -> ExperimentView:
    """Start an experiment as its page does, and return it after its end."""
    started = cluster.airflow.page("POST", "/experiments", body)
    run_id = started["run_id"]
    assert cluster.airflow.wait("dtrain_experiment", run_id, timeout_s=RUN_TIMEOUT_S) == "success"
    run = cluster.airflow.api("GET", f"/dags/dtrain_experiment/dagRuns/{run_id}")
    assert run["triggering_user_name"] == cluster.airflow.page("GET", "/me")["user"]
    (view,) = cluster.store.experiments.list(dag_id="dtrain_experiment", run_id=run_id)
    return view


def test_an_experiment_is_paused_goes_on_and_is_stopped_or_killed(cluster: Cluster) -> None:
    run_id = cluster.airflow.trigger("job_searches", {"config": grid(0.3, "waits")})
    first, second = cluster.until(lambda: _running(cluster, run_id), "a trial of each experiment")
    cluster.cli("experiments", "pause", str(first), "--yes")
    cluster.until(lambda: _states(cluster, first) == {"paused": 3}, "that nothing of it runs or waits")
    cluster.cli("experiments", "activate", str(first))
    cluster.until(lambda: _states(cluster, first) == {"running": 1, "queued": 2}, "that it goes on")
    cluster.cli("experiments", "kill", str(second), "--yes")
    cluster.until(lambda: _states(cluster, second) == {"killed": 3}, "that all are killed")
    cluster.cli("experiments", "stop", str(first), "--yes")
    assert cluster.airflow.wait("job_searches", run_id, timeout_s=RUN_TIMEOUT_S) == "failed", "one was killed"
    assert _states(cluster, first) == {"stopped": 3}
    best = cluster.airflow.xcom("job_searches", run_id, "first.best")
    reached = [one.metric for one in cluster.store.searches.history(best["search_id"]) if one.metric is not None]
    assert best["metric"] == max(reached)
    states = {one["state"] for one in cluster.tasks("job_searches", run_id, "first.trial")}
    assert states == {"success"}
    assert cluster.store.experiments.get(second).state == "killed"


@pytest.mark.torch
def test_the_grid_example_trains_each_trial_on_two_hosts(cluster: Cluster) -> None:
    state, run_id = cluster.run("dtrain_grid_search", {"slots_per_trial": 4, "pool": "gpus", "epochs": 1})
    assert state == "success", _logs(cluster, run_id)
    trials = [one for one in cluster.store.trials.list(limit=None) if one.key.run_id == run_id]
    assert [len(one.result["hosts"]) for one in trials if one.result] == [2] * 4
    assert len(cluster.airflow.xcom("dtrain_grid_search", run_id, "table")) == 4
    assert names(cluster.tasks("dtrain_grid_search", run_id, "trial"))[3] == "3 | dropout=0.4 lr=0.01"


@pytest.mark.torch
def test_the_asha_example_stops_bad_trials_and_starts_the_next_dag(cluster: Cluster) -> None:
    state, run_id = cluster.run("dtrain_asha_search", {"pool": "gpus"}, timeout_s=2 * RUN_TIMEOUT_S)
    assert state == "success", _logs(cluster, run_id)
    best = cluster.airflow.xcom("dtrain_asha_search", run_id, "experiment.best")
    states = Counter(best["trials"])
    assert states.total() == 16
    assert states["stopped"] > 0, "some trials were not worth their time"
    assert set(states) <= {"completed", "stopped"}
    assert best["metric"] > 0.9
    tasks = cluster.tasks("dtrain_asha_search", run_id, "experiment.trial")
    assert {one["state"] for one in tasks} == {"success"}, "a stopped trial is a success"
    pattern = r"\d+ \| dropout=\S+ global_batch_size=\d+ lr=\S+"
    assert all(re.fullmatch(pattern, name) for name in names(tasks)), names(tasks)
    entries = cluster.store.searches.rung_entries(best["search_id"])
    assert max(Counter((one.trial_id, one.rung) for one in entries).values()) == 1
    ran = cluster.until(lambda: cluster.runs("dtrain_new_best"), "the next DAG", 180)
    assert cluster.airflow.wait("dtrain_new_best", ran[0]["dag_run_id"]) == "success"
    assert cluster.airflow.xcom("dtrain_new_best", ran[0]["dag_run_id"], "deploy") == [best["checkpoint"]]


def _named_while_it_waits(cluster: Cluster, run_id: str) -> dict[str, Any] | None:
    """Return a task that has its name while its trial waits for the only place."""
    waits = {one.key.map_index for one in cluster.store.trials.list(run_id=run_id, state="queued", limit=None)}
    for one in cluster.tasks("job_searches", run_id, "first.trial"):
        if one["state"] == "deferred" and one["map_index"] in waits and "|" in one["rendered_map_index"]:
            return one
    return None


def _running(cluster: Cluster, run_id: str) -> tuple[int, int] | None:
    """Return both experiments of a DAG run once one trial of each runs and two are queued."""
    views = {one.name: one for one in cluster.store.experiments.list(dag_id="job_searches", run_id=run_id)}
    there = len(views) == 2 and all(one.trials == {"running": 1, "queued": 2} for one in views.values())
    return (views["first"].experiment_id, views["second"].experiment_id) if there else None


def _states(cluster: Cluster, experiment_id: int) -> dict[str, int]:
    return dict(cluster.store.experiments.get(experiment_id).trials)


def _most_at_once(store: Store, experiment_id: int) -> int:
    """Return the largest number of concurrent trials of an experiment."""
    spans = []
    for trial in store.trials.list(experiment_id=experiment_id, limit=None):
        granted_at = store.attempts.get(trial.attempt_id).granted_at
        for rank in store.events.ranks(trial.attempt_id):
            assert granted_at is not None
            assert rank.exited_at is not None
            spans.append((granted_at, rank.exited_at))
    return max(sum(begin <= other < end for begin, end in spans) for other, _ in spans)


def _logs(cluster: Cluster, run_id: str) -> str:
    """Return number, state and failure of the trials of a DAG run, as JSON."""
    views = [one for one in cluster.store.trials.list(limit=None) if one.key.run_id == run_id]
    return json.dumps([(one.number, one.state, one.failure) for one in views], default=str, indent=1)
