"""DAGs under a real scheduler on three real hosts (network namespaces), two CPU slots each."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from testbed.netns import missing
from testbed.standalone import wait_until
from tests.support.cluster import Cluster, ranks

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.netns,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or ""),
]

ROOT = Path(__file__).parents[2]
#: Home folders are often one NFS share: the run folders must not meet there.
ANY_HOMES = pytest.mark.parametrize("pool", ["gpus", "nfs"])


@pytest.mark.each_change("gpus-4-2")
@pytest.mark.torch
@pytest.mark.parametrize(("pool", "slots", "hosts"), [("gpus", 2, 1), ("gpus", 4, 2), ("gpus", 6, 3), ("nfs", 4, 2)])
def test_digits_trains_on_one_two_and_three_hosts(cluster: Cluster, pool: str, slots: int, hosts: int) -> None:
    state, run_id = cluster.run("dtrain_digits", {"slots_per_trial": slots, "pool": pool, "epochs": 6})
    log = cluster.airflow.log("dtrain_digits", run_id, "train")
    assert state == "success", log[-6000:]
    result = cluster.airflow.xcom("dtrain_digits", run_id, "train")
    assert result["state"] == "completed"
    assert result["metric"] > 0.95
    assert len(result["hosts"]) == hosts
    assert sorted(rank["rank"] for host in result["hosts"] for rank in host["ranks"]) == list(range(slots))
    logs = cluster.cli("trials", "logs", str(result["trial_id"]), "--all").out
    digests = dict(re.findall(r"rank (\d+) parameters sha256 ([0-9a-f]{64})", logs))
    assert len(digests) == slots
    assert len(set(digests.values())) == 1
    assert Path(result["checkpoint"]).is_dir()
    assert cluster.taken() == []
    _assert_linked_both_ways(cluster, run_id, result["trial_id"])


def _assert_linked_both_ways(cluster: Cluster, run_id: str, trial_id: int) -> None:
    """Check Airflow's links of the task instance to the pages, and the task instance of the trial's page."""
    instance = f"/dags/dtrain_digits/dagRuns/{run_id}/taskInstances/train"
    links = cluster.airflow.api("GET", f"{instance}/links")["extra_links"]
    assert links["Trial page"] == f"plugin/dtrain/trials/{trial_id}", links
    trial = cluster.airflow.page("GET", f"/trials/{trial_id}")
    assert links["Experiment page"] == f"plugin/dtrain/experiments/{trial['experiment_id']}", links
    assert trial["task"] == {"dag_id": "dtrain_digits", "run_id": run_id, "task_id": "train", "map_index": -1}


@pytest.mark.torch
def test_a_trial_class_resumes_after_a_failure_beside_a_small_and_a_large_batch(cluster: Cluster) -> None:
    pytest.importorskip("pytorch_optimizer")
    conf = {"pool": "gpus", "epochs": 6, "fail_at_batch": 60}
    resumed = cluster.airflow.trigger("dtrain_pytorch_trial", conf)
    state, compared = cluster.run("dtrain_large_batch", {"pool": "gpus"})
    logs = [cluster.airflow.log("dtrain_large_batch", compared, f"train_{name}") for name in ("small", "large")]
    assert state == "success", "".join(log[-3000:] for log in logs)
    accuracies = cluster.airflow.xcom("dtrain_large_batch", compared, "compare")
    assert sorted(accuracies) == ["large", "small"]
    assert min(accuracies.values()) > 0.95
    state = cluster.airflow.wait("dtrain_pytorch_trial", resumed)
    log = cluster.airflow.log("dtrain_pytorch_trial", resumed, "train")
    assert state == "success", log[-6000:]
    assert "Batch 60 fails in an attempt from scratch" in log
    result = cluster.airflow.xcom("dtrain_pytorch_trial", resumed, "train")
    assert (result["state"], result["steps"]) == ("completed", 6 * 23)
    assert result["metric"] > 0.95
    assert Path(result["checkpoint"]).is_dir()
    assert cluster.taken() == []


@pytest.mark.torch
def test_a_diagnosis_says_what_limits_a_training_and_frees_its_slots(cluster: Cluster) -> None:
    state, run_id = cluster.run("dtrain_diagnose", {"slots_per_trial": 4, "pool": "gpus", "steps": 10})
    log = cluster.airflow.log("dtrain_diagnose", run_id, "diagnose")
    assert state == "success", log[-6000:]
    result = cluster.airflow.xcom("dtrain_diagnose", run_id, "diagnose")
    assert cluster.airflow.xcom("dtrain_diagnose", run_id, "show") == result["limit"]
    assert all(sentence in log for sentence in result["sentences"])
    assert {run["steps"] for run in result["runs"][:5]} == {10}, result["runs"]
    assert sum(result["shares"].values()) == pytest.approx(1, abs=0.01)
    assert cluster.airflow.page("GET", f"/experiments/{result['experiment_id']}")["tags"] == ["diagnosis"]
    assert cluster.taken() == []


@pytest.mark.each_change
def test_a_gang_that_no_hosts_can_ever_hold_fails_at_once_with_the_reason(cluster: Cluster) -> None:
    state, run_id = cluster.run("job", ranks(5, "facts"))
    assert state == "failed"
    log = cluster.airflow.log("job", run_id, "train")
    assert "UnplaceableError" in log or "never" in log
    assert re.search(r"\b5\b", log)
    assert re.search(r"\b4\b.*\b6\b", log), "the sizes that would work are named"


@ANY_HOMES
def test_two_dag_runs_share_the_hosts_without_overlap(cluster: Cluster, pool: str) -> None:
    most = 2 * len(list(cluster.pools[pool]))
    runs = [cluster.airflow.trigger("job", ranks(slots, "hold 6", pool=pool)) for slots in (2, 4, 2, most)]
    assert [cluster.airflow.wait("job", run, timeout_s=240) for run in runs] == ["success"] * 4
    assert cluster.taken() == []


def test_mapped_trials_run_side_by_side(cluster: Cluster) -> None:
    state, run_id = cluster.run("job_mapped", ranks(2, "facts"))
    assert state == "success"
    logs = [cluster.airflow.log("job_mapped", run_id, "train", map_index=index) for index in (0, 1)]
    assert "Started 2 rank(s)" in logs[0]
    assert "Started 2 rank(s)" in logs[1]


def test_the_same_coroutine_runs_in_the_worker_without_deferring(cluster: Cluster) -> None:
    state, run_id = cluster.run("job_in_worker", ranks(4, "facts"))
    assert state == "success"
    assert cluster.airflow.xcom("job_in_worker", run_id, "train")["state"] == "completed"
    assert "[rank 0]" in cluster.airflow.log("job_in_worker", run_id, "train")


@pytest.mark.each_change("True-job")
@pytest.mark.parametrize("dag_id", ["job", "job_in_worker"])
@pytest.mark.parametrize("after_deferral", [False, True])
def test_a_kill_from_airflow_leaves_no_process_on_any_host(cluster: Cluster, dag_id: str, after_deferral: bool) -> None:
    if after_deferral and dag_id == "job_in_worker":
        pytest.skip("this task never defers")
    run_id = cluster.airflow.trigger(dag_id, ranks(6, "sleep 300"))
    wait_until(lambda: len(cluster.processes("ranks.py sleep")) >= 6, timeout_s=90, what="six ranks")
    if after_deferral:
        cluster.airflow.wait_task(dag_id, run_id, "train", "deferred", timeout_s=60)
        wait_until(lambda: "triggerer" in cluster.watcher(run_id), timeout_s=30, what="the triggerer")
    cluster.airflow.set_task_state(dag_id, run_id, "train", "failed")
    # Seconds on an idle machine. Airflow itself needs most of them: its triggerer looks for cancelled triggers.
    wait_until(lambda: not cluster.processes("ranks.py|sleep 300"), timeout_s=60, what="an end of every process")
    wait_until(lambda: not cluster.taken(), timeout_s=30, what="free slots")


@pytest.mark.each_change
def test_a_rank_that_raises_fails_the_task_with_its_traceback(cluster: Cluster) -> None:
    state, run_id = cluster.run("job", ranks(4, "fail 3"))
    assert state == "failed"
    log = cluster.airflow.log("job", run_id, "train")
    assert "Rank 3 on host 'gpus-" in log
    assert "ValueError: rank 3 cannot go on" in log
    assert "in <module>" in log
    assert cluster.processes("ranks.py") == []
    assert cluster.taken() == []


def test_a_missing_interpreter_is_named(cluster: Cluster) -> None:
    conf = ranks(2, "facts", environment={"python": "/opt/nowhere/python3"})
    state, run_id = cluster.run("job", conf)
    assert state == "failed"
    assert "has no interpreter '/opt/nowhere/python3'" in cluster.airflow.log("job", run_id, "train")


def test_a_missing_torch_is_named_with_the_command_that_installs_it(cluster: Cluster, tmp_path: Path) -> None:
    bare = "/usr/bin/python3"
    if not os.path.exists(bare) or subprocess.run([bare, "-c", "import torch"], capture_output=True).returncode == 0:
        pytest.skip("needs an interpreter without torch")
    conf = ranks(2, "facts", script="missing_torch.py", environment={"python": bare})
    state, run_id = cluster.run("job", conf)
    assert state == "failed"
    log = cluster.airflow.log("job", run_id, "train")
    assert "lacks torch" in log
    assert "-m pip install torch" in log


def test_an_unreachable_host_is_left_out_and_the_trial_goes_on_elsewhere(cluster: Cluster) -> None:
    name = "gpus-0"
    host = cluster.names[name]
    host.partition()
    try:
        state, run_id = cluster.run("job", ranks(4, "facts"), timeout_s=150)
        assert state == "success", cluster.airflow.log("job", run_id, "train")[-4000:]
        cluster.cli("hosts", "probe", name, check=False)
        run_id = cluster.airflow.trigger("job", ranks(6, "facts"))
        words = f"unreachable: {name}".lower()
        wait_until(lambda: words in cluster.cli("queue", "list", "-o", "json").out.lower(), timeout_s=150, what=words)
    finally:
        host.heal()
        cluster.cli("hosts", "probe", name)
    # A trial that waits for an unreachable host gets it when the host is back.
    assert cluster.airflow.wait("job", run_id, timeout_s=150) == "success"


def test_a_wrong_host_key_is_named(cluster: Cluster) -> None:
    name = "gpus-1"
    host = cluster.names[name]
    kept = {file: (host.folder / file).read_bytes() for file in ("host_key", "host_key.pub")}
    for file in kept:
        (host.folder / file).unlink()
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host.folder / "host_key")]
    subprocess.run(command, check=True, timeout=20)
    host.reboot()
    try:
        state, run_id = cluster.run("job_in_worker", ranks(6, "facts"), timeout_s=120)
        assert state == "failed"
        log = cluster.airflow.log("job_in_worker", run_id, "train")
        assert f"Host '{name}'" in log
        assert "presents another key than before" in log
    finally:
        for file, content in kept.items():
            (host.folder / file).write_bytes(content)
        host.reboot()
        cluster.cli("hosts", "probe", name)


@pytest.mark.torch
def test_two_trials_run_on_one_held_gang_that_a_teardown_frees(cluster: Cluster) -> None:
    conf = {"slots_per_trial": 4, "pool": "gpus", "epochs": 2}
    state, run_id = cluster.run("dtrain_held_gang", conf)
    logs = {name: cluster.airflow.log("dtrain_held_gang", run_id, name) for name in ("gang", "slow", "fast", "free")}
    assert state == "success", "".join(log[-3000:] for log in logs.values())
    gang = cluster.airflow.xcom("dtrain_held_gang", run_id, "gang")
    results = [cluster.airflow.xcom("dtrain_held_gang", run_id, name) for name in ("slow", "fast")]
    places = [{host["host"]: [rank["slot"] for rank in host["ranks"]] for host in one["hosts"]} for one in results]
    assert places == [gang["slots"]] * 2
    for name in ("slow", "fast"):
        assert f".{gang['token']}" in logs[name], f"the run bears no token of {gang}:\n{logs[name]}"
    assert "was released" in logs["free"]
    assert cluster.taken() == []


@pytest.mark.torch
def test_a_function_runs_as_the_ranks_of_a_gang(cluster: Cluster) -> None:
    conf = {"slots_per_trial": 4, "pool": "gpus", "samples": 100_000}
    state, run_id = cluster.run("dtrain_task_decorator", conf)
    log = cluster.airflow.log("dtrain_task_decorator", run_id, "estimate_pi")
    assert state == "success", log[-6000:]
    result = cluster.airflow.xcom("dtrain_task_decorator", run_id, "estimate_pi")
    assert result["ranks"] == 4
    assert abs(result["pi"] - 3.1416) < 0.02
    assert cluster.taken() == []


def test_functions_are_mapped_and_templated_and_fail_with_their_own_lines(cluster: Cluster) -> None:
    state, run_id = cluster.run("job_functions", {"word": "given"})
    assert state == "failed", "one of its functions raises"
    logs = [cluster.airflow.log("job_functions", run_id, "square", map_index=index) for index in (0, 1)]
    assert cluster.airflow.xcom("job_functions", run_id, "collect") == [4, 9], logs[0][-3000:]
    log = cluster.airflow.log("job_functions", run_id, "fails")
    assert "ValueError: cannot go on with {'number': 5}" in log
    lines = (ROOT / "tests" / "jobs" / "gangs.py").read_text().splitlines()
    number = next(index for index, line in enumerate(lines, start=1) if "raise ValueError(f" in line)
    assert re.search(rf"gangs\.py.*, line {number}, in fails", log), log[-3000:]
    assert "raise ValueError(f" in log


@pytest.mark.parametrize("dag_id", ["job_gang", "job_gang_left"])
def test_a_gang_is_freed_when_its_trial_fails(cluster: Cluster, dag_id: str) -> None:
    state, run_id = cluster.run(dag_id, {"slots": 4, **ranks(4, "fail 3")})
    assert state == "failed"
    assert "ValueError: rank 3 cannot go on" in cluster.airflow.log(dag_id, run_id, "train")
    # Without a teardown the end of the DAG run frees it.
    wait_until(lambda: not cluster.taken(), timeout_s=60, what="free slots")


def test_a_sensor_that_is_ended_while_it_waits_leaves_the_queue(cluster: Cluster) -> None:
    first = cluster.airflow.trigger("job_gang", {"slots": 6, **ranks(6, "sleep 300")})
    wait_until(lambda: len(cluster.processes("ranks.py sleep")) >= 6, timeout_s=120, what="six ranks")
    second = cluster.airflow.trigger("job_gang", {"slots": 2, **ranks(2, "facts")})
    cluster.airflow.wait_task("job_gang", second, "gang", "deferred")
    wait_until(lambda: len(cluster.waiting()) == 1, timeout_s=60, what="a waiting gang")
    cluster.airflow.set_task_state("job_gang", second, "gang", "failed")
    wait_until(lambda: not cluster.waiting(), timeout_s=30, what="an empty queue")
    cluster.airflow.set_task_state("job_gang", first, "train", "failed")
    wait_until(lambda: not cluster.processes("ranks.py|sleep 300"), timeout_s=30, what="an end of every process")
    wait_until(lambda: not cluster.taken(), timeout_s=90, what="free slots")
