"""What happens to Airflow itself: its processes are killed, and people change tasks that wait or run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import Checker, Holder, stat_of
from tests.integration.test_main_job import Cluster, fingerprint
from tests.netns import NamespaceHosts, missing
from tests.support.standalone import Standalone, wait_until

pytestmark = [
    pytest.mark.netns,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.skipif(bool(missing()), reason=missing() or ""),
]

HERE = Path(__file__).parent
ORPHAN_TIMEOUT_S = 30
CONFIG = """
name: faults
entrypoint: python steps.py {until} 0.1 10
model_dir: code
max_restarts: 5
checkpoint_policy: all
resources: {{slots_per_trial: {slots}, pool: gpus}}
checkpoint_storage: {{type: shared_fs, host_path: {shared}}}
"""


class Stage(Cluster):
    """Airflow, three hosts, and a checker that reads their processes."""

    def __init__(self, airflow: Standalone, hosts: NamespaceHosts) -> None:
        super().__init__(airflow, hosts)
        self.checker = Checker(hosts)

    def start(self, dag_id: str, slots: int = 4, until: int = 3000) -> str:
        shared = self.hosts.folder / "shared"
        shared.mkdir(exist_ok=True)
        return self.airflow.trigger(dag_id, {"config": CONFIG.format(slots=slots, until=until, shared=shared)})

    def runs(self) -> list[Holder]:
        return self.checker.look()

    def ranks(self, number: int, what: str) -> set[int]:
        wait_until(lambda: len(self.runs()) >= number, timeout_s=240, what=what)
        return {one.pid for one in self.runs()}

    def deferred(self, run_id: str) -> None:
        self.airflow.wait_task("deferred", run_id, "train", "deferred", timeout_s=240)
        wait_until(lambda: "triggerer" in self.watcher(run_id), timeout_s=120, what="the triggerer")

    def component(self, name: str) -> int:
        """Return the process of a part of Airflow; the standalone process is its parent."""
        assert self.airflow._process is not None
        words = f"airflow\0{name}".encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                status = stat_of(int(entry.name))
                if status and status[1] == self.airflow._process.pid and words in (entry / "cmdline").read_bytes():
                    return int(entry.name)
        raise AssertionError(f"no process of {name}")

    def tasks(self) -> list[int]:
        """Return the processes that run tasks and those that look after them."""
        found, marks = [], (b"LocalExecutor", b"task supervisor", b"task runner", b"airflow worker")
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                line = (entry / "cmdline").read_bytes()
                mine = f"AIRFLOW_HOME={self.airflow.home}".encode() in (entry / "environ").read_bytes()
                if mine and any(mark in line for mark in marks):
                    found.append(int(entry.name))
        return found

    def start_component(self, *words: str) -> subprocess.Popen[bytes]:
        log = (self.airflow.home / f"{words[0]}-again.log").open("ab")
        command = [sys.executable, "-m", "airflow", *words]
        return subprocess.Popen(command, env=self.airflow.environment, stdout=log, stderr=log, start_new_session=True)

    def is_clean(self) -> None:
        wait_until(lambda: not self.runs(), timeout_s=120, what="the end of every process")
        wait_until(lambda: not self.held(), timeout_s=120, what="free slots")
        assert self.checker.violations == []


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    home, dags = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("dags")
    (dags / "faulty.py").write_text((HERE / "dags" / "faulty.py").read_text())
    (dags / "code").mkdir()
    (dags / "code" / "steps.py").write_text((HERE / "code" / "steps.py").read_text())
    with NamespaceHosts(count=3, slots=2) as hosts:
        variables = {f"AIRFLOW_CONN_{host.name.upper().replace('-', '_')}": host.airflow_conn() for host in hosts}
        variables |= {"AIRFLOW__DTRAIN__ORPHAN_TIMEOUT": str(ORPHAN_TIMEOUT_S), "AIRFLOW__DTRAIN__KILL_GRACE_S": "2"}
        airflow = Standalone(home, dags, variables)
        airflow.start()
        try:
            stage = Stage(airflow, hosts)
            for host in hosts:
                facts = ["--conn", host.name.replace("-", "_"), "--python", sys.executable, "--slots", "cpu:2"]
                stage.cli("hosts", "add", host.name, *facts, "--pool", "gpus", "--accept-host-key", fingerprint(host))
            yield stage
            stage.checker.close()
        finally:
            airflow.stop()


@pytest.mark.parametrize("new_state", ["failed", "success"])
def test_a_deferred_task_that_a_person_marks_leaves_nothing_behind(stage: Stage, new_state: str) -> None:
    run_id = stage.start("deferred")
    stage.ranks(4, "four ranks")
    stage.deferred(run_id)
    stage.airflow.set_task_state("deferred", run_id, "train", new_state)
    stage.is_clean()


def test_a_deferred_task_that_a_person_clears_ends_its_gang_before_the_next_one_starts(stage: Stage) -> None:
    run_id = stage.start("deferred", slots=6)
    first = stage.ranks(6, "six ranks")
    stage.deferred(run_id)
    body = {"dag_run_id": run_id, "task_ids": ["train"], "dry_run": False, "only_failed": False}
    stage.airflow.api("POST", "/dags/deferred/clearTaskInstances", body)
    wait_until(
        lambda: len(now := {one.pid for one in stage.runs()}) >= 6 and not now & first, timeout_s=240, what="a new gang"
    )
    wait_until(lambda: "triggerer" in stage.watcher(run_id), timeout_s=240, what="the triggerer")
    stage.airflow.set_task_state("deferred", run_id, "train", "failed")
    stage.is_clean()


def test_a_killed_worker_is_replaced_by_the_retry_which_follows_the_same_gang(stage: Stage) -> None:
    run_id = stage.start("in_worker", until=1500)
    stage.ranks(4, "four ranks")
    for pid in stage.tasks():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert stage.airflow.wait("in_worker", run_id, timeout_s=500) == "success"
    stage.is_clean()


@pytest.mark.parametrize("words", [("scheduler",), ("triggerer",), ("api-server",)])
def test_a_killed_part_of_airflow_that_comes_back_costs_nothing_but_time(stage: Stage, words: tuple[str, ...]) -> None:
    run_id = stage.start("deferred", until=600)
    stage.ranks(4, "four ranks")
    stage.deferred(run_id)
    os.kill(stage.component(words[0]), signal.SIGKILL)
    again = ["--port", str(stage.airflow.port)] if words[0] == "api-server" else []
    part = stage.start_component(*words, *again)
    try:
        wait_until(stage.airflow._healthy, timeout_s=180, what=f"{words[0]} again")
        assert stage.airflow.wait("deferred", run_id, timeout_s=500) == "success"
        stage.is_clean()
    finally:
        os.killpg(part.pid, signal.SIGTERM)


def test_a_dag_that_is_deleted_while_it_waits_frees_what_it_had(stage: Stage) -> None:
    first = stage.start("deferred", slots=6)
    stage.ranks(6, "six ranks")
    waiting = stage.start("deleted", slots=6)
    stage.airflow.wait_task("deleted", waiting, "train", "deferred", timeout_s=240)
    stage.airflow.api("DELETE", "/dags/deleted")
    stage.deferred(first)
    stage.airflow.set_task_state("deferred", first, "train", "failed")
    stage.is_clean()
