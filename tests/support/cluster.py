"""Airflow and test hosts for tests with a real scheduler."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_dtrain.hooks.dtrain import DtrainHook
from airflow_provider_dtrain.hooks.settings import settings
from airflow_provider_dtrain.store.store import Store
from testbed.netns import NamespaceHost, NamespaceHosts
from testbed.standalone import Standalone, wait_until
from tests.support.forking_cli import Done, ForkingCli

RANKS = """
name: ranks
entrypoint: python {script} {arguments}
model_dir: code
max_restarts: 0
resources: {{slots_per_trial: {slots}, pool: {pool}}}
"""
#: Time-out of a DAG run that waits for other runs on a machine with two busy cores.
RUN_TIMEOUT_S = 1500.0


def ranks(slots: int, arguments: str, *, pool: str = "gpus", script: str = "ranks.py", **more: Any) -> dict[str, Any]:
    """Return the conf of a DAG run of ranks without torch."""
    text = RANKS.format(script=script, slots=slots, arguments=arguments, pool=pool)
    return {"config": text + "".join(f"{name}: {json.dumps(value)}\n" for name, value in more.items())}


def fingerprint(host: NamespaceHost) -> str:
    digest = hashlib.sha256(base64.b64decode(host.host_key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class Cluster:
    """Airflow, hosts, and the CLI.

    :param pools: pool -> its hosts, which are registered as ``<pool>-0``, ``<pool>-1`` ...
    """

    def __init__(self, home: Path, dags: Path, pools: dict[str, NamespaceHosts]) -> None:
        self.pools = pools
        self.names = {f"{pool}-{i}": host for pool, hosts in pools.items() for i, host in enumerate(hosts)}
        connections = {
            f"AIRFLOW_CONN_{name.upper().replace('-', '_')}": host.airflow_conn(host_key=False)
            for name, host in self.names.items()
        }
        self.airflow = Standalone(home, dags, connections)
        self._triggerer: subprocess.Popen[bytes] | None = None
        self.commands = ForkingCli(home, self.airflow.environment)
        url = f"sqlite:///{home / 'dtrain.db'}"
        self._hook = DtrainHook(dataclasses.replace(settings(), sql_alchemy_conn=url))

    @property
    def store(self) -> Store:
        return self._hook.store

    def start(self) -> None:
        """Start Airflow and register the hosts."""
        self.airflow.start()
        for name, host in self.names.items():
            facts = ["--conn", name.replace("-", "_"), "--python", sys.executable, "--slots", "cpu:2"]
            accepted = ["--pool", name.rpartition("-")[0], "--accept-host-key", fingerprint(host)]
            self.cli("hosts", "add", name, *facts, *accepted)

    def restart_triggerer(self) -> None:
        """Kill the triggerer and its processes with SIGKILL, and start another one."""
        children = psutil.Process(self.airflow.pid).children()
        triggerer = next(one for one in children if "triggerer" in " ".join(one.cmdline()))
        for process in [triggerer, *triggerer.children(recursive=True)]:
            process.kill()
        with (self.airflow.home / "triggerer.log").open("wb") as log:
            self._triggerer = subprocess.Popen(
                [sys.executable, "-m", "airflow", "triggerer"], env=self.airflow.environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        if self._triggerer is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._triggerer.pid, signal.SIGKILL)
            self._triggerer.wait(timeout=30)
        self.airflow.stop()
        self.commands.close()
        self.store.close()

    def cli(self, *arguments: str, check: bool = True) -> Done:
        done = self.commands.run("dtrain", *arguments)
        assert not check or done.code == 0, done.out + done.err
        return done

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the rows that a command lists."""
        return list(self.cli(*arguments, "-o", "json").json)

    def run(self, dag_id: str, conf: dict[str, Any], *, timeout_s: float = RUN_TIMEOUT_S) -> tuple[str, str]:
        """Return state and id of a finished DAG run."""
        run_id = self.airflow.trigger(dag_id, conf)
        return self.airflow.wait(dag_id, run_id, timeout_s=timeout_s), run_id

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        return list(self.airflow.api("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"])

    def tasks(self, dag_id: str, run_id: str, task_id: str) -> list[dict[str, Any]]:
        """Return the mapped instances of a task, in order."""
        found = self.airflow.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=500")["task_instances"]
        mapped = [one for one in found if one["task_id"] == task_id and one["map_index"] >= 0]
        return sorted(mapped, key=lambda one: one["map_index"])

    def clear(self, dag_id: str, run_id: str, *task_ids: Any) -> None:
        """Do what the UI's clear button does, tasks downstream included."""
        body = {"dag_run_id": run_id, "task_ids": list(task_ids), "dry_run": False, "only_failed": False}
        self.airflow.api("POST", f"/dags/{dag_id}/clearTaskInstances", {**body, "include_downstream": True})

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = RUN_TIMEOUT_S) -> Any:
        return wait_until(condition, timeout_s=timeout_s, what=what, poll_s=2.0)

    def processes(self, pattern: str) -> list[str]:
        """Return the command lines of the hosts' processes that match a regular expression."""
        found = []
        for name, host in self.names.items():
            for line in map(" ".join, host.commands().values()):
                if re.search(pattern, line):
                    found.append(f"{name}: {line}")
        return found

    def trials(self, run_id: str) -> list[int]:
        """Return the trials of a DAG run."""
        return [int(one["trial_id"]) for one in self.rows("trials", "list") if one["task"]["run_id"] == run_id]

    def watcher(self, run_id: str) -> str:
        """Return the name of the follower of the trial of a DAG run."""
        described = self.cli("trials", "describe", str(self.trials(run_id)[0]), "-o", "json").json
        return str(described["watcher"])

    def taken(self) -> list[dict[str, Any]]:
        """Return the slots that a trial or a held gang occupies."""
        return [slot for slot in self.rows("slots", "list") if slot["state"] == "held" or slot["trial_id"]]

    def waiting(self) -> list[dict[str, Any]]:
        """Return the tasks whose gangs wait in the queue."""
        return [task for task in self.rows("queue", "list") if task["state"].startswith("waiting")]
