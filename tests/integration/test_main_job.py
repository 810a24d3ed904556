"""DAGs under a real scheduler on three real hosts (network namespaces), two CPU slots each."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.netns import NamespaceHost, NamespaceHosts, missing
from tests.support.standalone import Standalone, wait_until

pytestmark = [
    pytest.mark.netns,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or ""),
]

ROOT = Path(__file__).parents[2]
RANKS = """
name: ranks
entrypoint: python ranks.py {arguments}
model_dir: code
max_restarts: 0
resources: {{slots_per_trial: {slots}, pool: gpus}}
"""


def ranks(slots: int, arguments: str, **more: Any) -> dict[str, str]:
    """Return the DAG run's conf for ranks without torch."""
    text = RANKS.format(slots=slots, arguments=arguments) + "".join(f"{k}: {json.dumps(v)}\n" for k, v in more.items())
    return {"config": text}


def fingerprint(host: NamespaceHost) -> str:
    digest = hashlib.sha256(base64.b64decode(host.host_key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class Cluster:
    """Airflow, three hosts, and the CLI."""

    def __init__(self, airflow: Standalone, hosts: NamespaceHosts) -> None:
        self.airflow, self.hosts = airflow, hosts

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "airflow", "dtrain", *arguments]
        done = subprocess.run(command, env=self.airflow.environment, capture_output=True, text=True, timeout=120)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def run(self, dag_id: str, conf: dict[str, Any], *, timeout_s: float = 180) -> tuple[str, str]:
        """Return state and id of a finished DAG run."""
        run_id = self.airflow.trigger(dag_id, conf)
        return self.airflow.wait(dag_id, run_id, timeout_s=timeout_s), run_id

    def processes(self, pattern: str) -> list[str]:
        """Return the command lines of all hosts' processes that match."""
        found = []
        for host in self.hosts:
            for pid in host.pids():
                try:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
                if re.search(pattern, line):
                    found.append(f"{host.name}: {line}")
        return found

    def watcher(self, run_id: str) -> str:
        """Return who follows the trial of a DAG run."""
        trials = json.loads(self.cli("trial", "list", "-o", "json").stdout)
        found = next(str(trial["trial"]) for trial in trials if trial["dag_run"] == run_id)
        return str(json.loads(self.cli("trial", "describe", found, "-o", "json").stdout)["watcher"])

    def held(self) -> list[dict[str, Any]]:
        """Return the slots that somebody holds."""
        slots = json.loads(self.cli("slots", "list", "-o", "json").stdout)
        return [slot for slot in slots if slot.get("trial") or slot.get("trial_id")]

    def taken(self) -> list[dict[str, Any]]:
        """Return the slots that a trial or a held gang has."""
        return [slot for slot in json.loads(self.cli("slots", "list", "-o", "json").stdout) if slot["state"] == "held"]

    def waiting(self) -> list[dict[str, Any]]:
        """Return the gangs that wait in the queue."""
        tasks = json.loads(self.cli("task", "list", "-o", "json").stdout)
        return [task for task in tasks if task["state"].startswith("waiting")]


#: Home folders are often one NFS share: the run folders must not meet there.
ANY_HOMES = pytest.mark.parametrize("cluster", ["own homes", "one home"], indirect=True)
OWN_HOMES = pytest.mark.parametrize("cluster", ["own homes"], indirect=True)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    for folder in (ROOT / "dags", ROOT / "tests" / "jobs"):
        shutil.copytree(folder, dags, dirs_exist_ok=True)
    with NamespaceHosts(count=3, slots=2, shared_home=request.param == "one home") as hosts:
        connections = {
            f"AIRFLOW_CONN_{host.name.upper().replace('-', '_')}": host.airflow_conn(host_key=False) for host in hosts
        }
        airflow = Standalone(home, dags, connections)
        try:
            airflow.start()
            cluster = Cluster(airflow, hosts)
            for host in hosts:
                conn_id = host.name.lower().replace("-", "_")
                facts = ["--conn", conn_id, "--python", sys.executable, "--slots", "cpu:2", "--pool", "gpus"]
                cluster.cli("hosts", "add", host.name, *facts, "--accept-host-key", fingerprint(host))
            yield cluster
        finally:
            airflow.stop()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("cluster", "slots", "hosts"),
    [("own homes", 2, 1), ("own homes", 4, 2), ("own homes", 6, 3), ("one home", 4, 2)],
    indirect=["cluster"],
)
def test_digits_trains_on_one_two_and_three_hosts(cluster: Cluster, slots: int, hosts: int) -> None:
    state, run_id = cluster.run("dtrain_digits", {"slots_per_trial": slots, "pool": "gpus"}, timeout_s=400)
    log = cluster.airflow.log("dtrain_digits", run_id, "train")
    assert state == "success", log[-6000:]
    result = cluster.airflow.xcom("dtrain_digits", run_id, "train")
    assert result["state"] == "completed"
    assert result["metric"] > 0.95
    assert len(result["hosts"]) == hosts
    assert sorted(rank["rank"] for host in result["hosts"] for rank in host["ranks"]) == list(range(slots))
    logs = cluster.cli("trial", "logs", str(result["trial_id"]), "--all").stdout
    digests = dict(re.findall(r"rank (\d+) parameters sha256 ([0-9a-f]{64})", logs))
    assert len(digests) == slots
    assert len(set(digests.values())) == 1
    assert Path(result["checkpoint"]).is_dir()
    assert cluster.held() == []


@pytest.mark.torch
@OWN_HOMES
def test_a_trial_class_resumes_after_a_failure_beside_a_small_and_a_large_batch(cluster: Cluster) -> None:
    pytest.importorskip("pytorch_optimizer")
    conf = {"pool": "gpus", "epochs": 6, "fail_at_batch": 60}
    resumed = cluster.airflow.trigger("dtrain_pytorch_trial", conf)
    state, compared = cluster.run("dtrain_large_batch", {"pool": "gpus"}, timeout_s=500)
    logs = [cluster.airflow.log("dtrain_large_batch", compared, f"train_{name}") for name in ("small", "large")]
    assert state == "success", "".join(log[-3000:] for log in logs)
    accuracies = cluster.airflow.xcom("dtrain_large_batch", compared, "compare")
    assert sorted(accuracies) == ["large", "small"]
    assert min(accuracies.values()) > 0.95
    state = cluster.airflow.wait("dtrain_pytorch_trial", resumed, timeout_s=400)
    log = cluster.airflow.log("dtrain_pytorch_trial", resumed, "train")
    assert state == "success", log[-6000:]
    assert "Batch 60 fails in an attempt from scratch" in log
    result = cluster.airflow.xcom("dtrain_pytorch_trial", resumed, "train")
    assert (result["state"], result["steps"]) == ("completed", 6 * 23)
    assert result["metric"] > 0.95
    assert Path(result["checkpoint"]).is_dir()
    assert cluster.held() == []


@OWN_HOMES
def test_a_gang_that_no_hosts_can_ever_hold_fails_at_once_with_the_reason(cluster: Cluster) -> None:
    state, run_id = cluster.run("job", ranks(5, "facts"), timeout_s=60)
    assert state == "failed"
    log = cluster.airflow.log("job", run_id, "train")
    assert "UnplaceableError" in log or "never" in log
    assert re.search(r"\b5\b", log)
    assert re.search(r"\b4\b.*\b6\b", log), "the sizes that would work are named"


@ANY_HOMES
def test_two_dag_runs_share_the_hosts_without_overlap(cluster: Cluster) -> None:
    runs = [cluster.airflow.trigger("job", ranks(slots, "hold 6")) for slots in (2, 4, 2, 6)]
    assert [cluster.airflow.wait("job", run, timeout_s=240) for run in runs] == ["success"] * 4
    assert cluster.held() == []


@OWN_HOMES
def test_mapped_trials_run_side_by_side(cluster: Cluster) -> None:
    state, run_id = cluster.run("job_mapped", ranks(2, "facts"))
    assert state == "success"
    logs = [cluster.airflow.log("job_mapped", run_id, "train", map_index=index) for index in (0, 1)]
    assert "Started 2 rank(s)" in logs[0]
    assert "Started 2 rank(s)" in logs[1]


@OWN_HOMES
def test_the_same_coroutine_runs_in_the_worker_without_deferring(cluster: Cluster) -> None:
    state, run_id = cluster.run("job_in_worker", ranks(4, "facts"))
    assert state == "success"
    assert cluster.airflow.xcom("job_in_worker", run_id, "train")["state"] == "completed"
    assert "[rank 0]" in cluster.airflow.log("job_in_worker", run_id, "train")


@OWN_HOMES
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
    wait_until(lambda: not cluster.processes("ranks.py|sleep 300"), timeout_s=10, what="an end of every process")
    wait_until(lambda: not cluster.held(), timeout_s=20, what="free slots")


@OWN_HOMES
def test_a_rank_that_raises_fails_the_task_with_its_traceback(cluster: Cluster) -> None:
    state, run_id = cluster.run("job", ranks(4, "fail 3"), timeout_s=120)
    assert state == "failed"
    log = cluster.airflow.log("job", run_id, "train")
    assert "Rank 3 on host" in log
    assert "ValueError: rank 3 cannot go on" in log
    assert "in <module>" in log
    assert cluster.processes("ranks.py") == []
    assert cluster.held() == []


@OWN_HOMES
def test_a_missing_interpreter_is_named(cluster: Cluster) -> None:
    conf = ranks(2, "facts", environment={"python": "/opt/nowhere/python3"})
    state, run_id = cluster.run("job", conf, timeout_s=60)
    assert state == "failed"
    assert "has no interpreter '/opt/nowhere/python3'" in cluster.airflow.log("job", run_id, "train")


@OWN_HOMES
def test_a_missing_torch_is_named_with_the_command_that_installs_it(cluster: Cluster, tmp_path: Path) -> None:
    bare = "/usr/bin/python3"
    if not os.path.exists(bare) or subprocess.run([bare, "-c", "import torch"], capture_output=True).returncode == 0:
        pytest.skip("needs an interpreter without torch")
    text = RANKS.format(slots=2, arguments="facts").replace("ranks.py", "missing_torch.py")
    state, run_id = cluster.run("job", {"config": text + f"environment: {{python: {bare}}}\n"}, timeout_s=60)
    assert state == "failed"
    log = cluster.airflow.log("job", run_id, "train")
    assert "lacks torch" in log
    assert "-m pip install torch" in log


@OWN_HOMES
def test_an_unreachable_host_is_left_out_and_the_trial_goes_on_elsewhere(cluster: Cluster) -> None:
    host = cluster.hosts.host(0)
    host.partition()
    try:
        state, run_id = cluster.run("job", ranks(4, "facts"), timeout_s=150)
        assert state == "success", cluster.airflow.log("job", run_id, "train")[-4000:]
        cluster.cli("hosts", "probe", host.name, check=False)
        run_id = cluster.airflow.trigger("job", ranks(6, "facts"))
        words = f"unreachable: {host.name}".lower()
        wait_until(lambda: words in cluster.cli("task", "list", "-o", "json").stdout.lower(), timeout_s=150, what=words)
    finally:
        host.heal()
        cluster.cli("hosts", "probe", host.name)
    # Somebody who waits for a host that is away gets it when it is back.
    assert cluster.airflow.wait("job", run_id, timeout_s=150) == "success"


@OWN_HOMES
def test_a_wrong_host_key_is_named(cluster: Cluster) -> None:
    host = cluster.hosts.host(1)
    kept = {name: (host.folder / name).read_bytes() for name in ("host_key", "host_key.pub")}
    for name in kept:
        (host.folder / name).unlink()
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(host.folder / "host_key")]
    subprocess.run(command, check=True, timeout=20)
    host.reboot()
    try:
        state, run_id = cluster.run("job_in_worker", ranks(6, "facts"), timeout_s=120)
        assert state == "failed"
        log = cluster.airflow.log("job_in_worker", run_id, "train")
        assert f"Host '{host.name}'" in log
        assert "shows another key than before" in log
    finally:
        for name, content in kept.items():
            (host.folder / name).write_bytes(content)
        host.reboot()
        cluster.cli("hosts", "probe", host.name)


@pytest.mark.torch
@OWN_HOMES
def test_two_trials_run_on_one_held_gang_that_a_teardown_frees(cluster: Cluster) -> None:
    conf = {"slots_per_trial": 4, "pool": "gpus", "epochs": 2}
    state, run_id = cluster.run("dtrain_held_gang", conf, timeout_s=400)
    logs = {name: cluster.airflow.log("dtrain_held_gang", run_id, name) for name in ("gang", "slow", "fast", "free")}
    assert state == "success", "".join(log[-3000:] for log in logs.values())
    gang = cluster.airflow.xcom("dtrain_held_gang", run_id, "gang")
    results = [cluster.airflow.xcom("dtrain_held_gang", run_id, name) for name in ("slow", "fast")]
    places = [{host["host"]: [rank["slot"] for rank in host["ranks"]] for host in one["hosts"]} for one in results]
    assert places == [gang["slots"]] * 2
    assert all(f".{gang['token']}" in logs[name] for name in ("slow", "fast")), "both runs bear the gang's token"
    assert "is free" in logs["free"]
    assert cluster.taken() == []


@pytest.mark.torch
@OWN_HOMES
def test_a_function_runs_as_the_ranks_of_a_gang(cluster: Cluster) -> None:
    conf = {"slots_per_trial": 4, "pool": "gpus", "samples": 100_000}
    state, run_id = cluster.run("dtrain_task_decorator", conf, timeout_s=240)
    log = cluster.airflow.log("dtrain_task_decorator", run_id, "estimate_pi")
    assert state == "success", log[-6000:]
    result = cluster.airflow.xcom("dtrain_task_decorator", run_id, "estimate_pi")
    assert result["ranks"] == 4
    assert abs(result["pi"] - 3.1416) < 0.02
    assert cluster.taken() == []


@OWN_HOMES
def test_functions_are_mapped_and_templated_and_fail_with_their_own_lines(cluster: Cluster) -> None:
    state, run_id = cluster.run("job_functions", {"word": "given"}, timeout_s=240)
    assert state == "failed", "one of its functions raises"
    logs = [cluster.airflow.log("job_functions", run_id, "square", map_index=index) for index in (0, 1)]
    assert cluster.airflow.xcom("job_functions", run_id, "collect") == [4, 9], logs[0][-3000:]
    log = cluster.airflow.log("job_functions", run_id, "fails")
    assert "ValueError: cannot go on with {'number': 5}" in log
    lines = (ROOT / "tests" / "jobs" / "gangs.py").read_text().splitlines()
    number = next(index for index, line in enumerate(lines, start=1) if "raise ValueError(f" in line)
    assert re.search(rf"gangs\.py.*, line {number}, in fails", log), log[-3000:]
    assert "raise ValueError(f" in log


@OWN_HOMES
@pytest.mark.parametrize("dag_id", ["job_gang", "job_gang_left"])
def test_a_gang_is_freed_when_its_trial_fails(cluster: Cluster, dag_id: str) -> None:
    state, run_id = cluster.run(dag_id, {"slots": 4, **ranks(4, "fail 3")}, timeout_s=240)
    assert state == "failed"
    assert "ValueError: rank 3 cannot go on" in cluster.airflow.log(dag_id, run_id, "train")
    # Without a teardown the end of the DAG run frees it.
    wait_until(lambda: not cluster.taken(), timeout_s=60, what="free slots")


@OWN_HOMES
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
