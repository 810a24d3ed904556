"""One `airflow standalone` with its own home: start, REST calls, stop."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any

import processes

ROOT = Path(__file__).resolve().parents[2]
#: Variables of the caller that would leak another Airflow, Python or training job into this one.
FOREIGN = ("AIRFLOW", "_AIRFLOW", "PYTHON", "VIRTUAL_ENV", "CONDA_", "DTRAIN_", "TORCHELASTIC_", "MASTER_")
READY_S = 900.0
#: Folder of the example DAGs, and code in it that an experiment from a page can use.
EXAMPLES, CODE = ROOT / "dags", "digits"
#: The file that `airflow dtrain init` writes.
EXPERIMENT_DAG = """from airflow_provider_dtrain.dags import experiment_dag
dag = experiment_dag()
"""
OPERATIONS_DAG = """from airflow_provider_dtrain.dags import operations_dag
dag = operations_dag()
"""
#: Timeout of one request; slow requests are retried.
ANSWER_S = 30.0


class AirflowError(Exception):
    """Airflow did not start or did not answer. The message says where to look."""


class NoAnswerError(AirflowError):
    """Airflow did not answer one request in time. The next request may succeed."""


@dataclass(kw_only=True)
class Standalone:
    """A running Airflow below one folder."""

    folder: Path
    python: Path
    port: int
    pid: int = 0
    token: str = ""
    opener: Any = field(default_factory=lambda: urllib.request.build_opener(urllib.request.ProxyHandler({})))

    @property
    def address(self) -> str:
        """URL of the web UI."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def home(self) -> Path:
        """Its AIRFLOW_HOME."""
        return self.folder / "airflow"

    @property
    def log(self) -> Path:
        """Output of all its components."""
        return self.folder / "airflow.log"

    @property
    def state(self) -> Path:
        """File that identifies the processes for a later call."""
        return self.folder / "airflow.json"

    @property
    def dags(self) -> Path:
        """Its DAGs folder, to which users and `airflow dtrain init` add files. The examples are another bundle."""
        return self.folder / "dags"

    @property
    def bundles(self) -> str:
        """Its DAG bundles, for Airflow's configuration."""
        local = "airflow.dag_processing.bundles.local.LocalDagBundle"
        places = {"dags-folder": {}, "examples": {"path": str(EXAMPLES)}}
        return json.dumps([{"name": name, "classpath": local, "kwargs": place} for name, place in places.items()])

    def write_dags(self) -> None:
        """Write the DAGs of ``airflow dtrain init``, and code with which a user can start one."""
        self.dags.mkdir(parents=True, exist_ok=True)
        (self.dags / "dtrain_experiment.py").write_text(EXPERIMENT_DAG)
        (self.dags / "dtrain_operations.py").write_text(OPERATIONS_DAG)
        shutil.copytree(EXAMPLES / CODE, self.dags / CODE, dirs_exist_ok=True)

    def write_environment(self) -> Path:
        """Write the file that a shell must source before it uses the airflow command, and return its path."""
        path = self.folder / "env.sh"
        options = {name: value for name, value in self.environment({}).items() if name.startswith("AIRFLOW")}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in options.items()]
        lines.append(f'export PATH={shlex.quote(str(self.python.parent))}:"$PATH"')
        path.write_text("\n".join(lines) + "\n")
        return path

    def start(self) -> None:
        """Start all components in a new session and record their process and port."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.write_dags()
        command = [self.python, "-m", "airflow", "standalone"]
        with self.log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        self.pid = process.pid
        started = processes.read(self.pid)
        note = {"pid": self.pid, "start_time": started.start_time if started else 0, "port": self.port}
        self.state.write_text(json.dumps(note))

    def environment(self, caller: Mapping[str, str]) -> dict[str, str]:
        """Return the environment that Airflow and its tasks run in."""
        kept = {name: value for name, value in caller.items() if not name.startswith(FOREIGN)}
        return kept | {
            "PATH": f"{self.python.parent}{os.pathsep}{caller.get('PATH', os.defpath)}",
            "NO_PROXY": ",".join(filter(None, [caller.get("NO_PROXY"), "127.0.0.1,localhost"])),
            "PYTHONUNBUFFERED": "1",
            processes.MARK: str(self.folder),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.address,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.address}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": self.bundles,
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__DTRAIN__REMOTE_DIR": str(self.folder / "remote"),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.port + 2),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self.port + 1),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            # A busy machine may exceed the default of 5 s, after which Airflow fails a task that could not start.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        }

    def wait(self, tell: Callable[[str], None]) -> None:
        """Wait until scheduler, triggerer and DAG processor are healthy.

        :param tell: called with the components that are not ready yet
        :raises AirflowError: Airflow ended, or was not ready in time
        """
        deadline = time.monotonic() + READY_S
        missing: list[str] = []
        while time.monotonic() < deadline:
            if not processes.read(self.pid):
                raise AirflowError(f"Airflow ended while starting. The end of {self.log}:\n{self.tail()}")
            missing = self.missing()
            if not missing:
                return
            tell(", ".join(missing))
            time.sleep(0.5)
        raise AirflowError(
            f"Airflow was not ready after {READY_S:.0f} s. Missing: {', '.join(missing)}. The load of this machine is "
            f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} cores. The end of {self.log}:\n{self.tail()}"
        )

    def missing(self) -> list[str]:
        """Return the components that are not healthy yet."""
        try:
            health = self.call("GET", "/api/v2/monitor/health")
        except AirflowError:
            return ["API server"]
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return [part for part in parts if (health.get(part) or {}).get("status") != "healthy"]

    def tail(self, lines: int = 15) -> str:
        """Return the end of the output."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join("    " + line for line in text.splitlines()[-lines:])

    def password(self) -> str:
        """Return the password of the user ``admin``.

        :raises AirflowError: this Airflow has not started, so that another one answers on the port
        """
        file = self.home / "simple_auth_manager_passwords.json.generated"
        if not file.exists():
            raise AirflowError(f"Another Airflow answers at {self.address}. Try again, or with another --port.")
        return str(json.loads(file.read_text())["admin"])

    def login(self, deadline: float) -> None:
        """Fetch the token that all later calls carry."""
        body = {"username": "admin", "password": self.password()}
        self.token = self.ask("POST", "/auth/token", body, deadline=deadline)["access_token"]

    def ask(self, method: str, path: str, body: object = None, *, deadline: float) -> Any:
        """Return the decoded answer of one REST call, which is retried while Airflow does not answer.

        :param deadline: time of the monotonic clock after which there are no further attempts
        :raises AirflowError: Airflow refused the call, has ended, or gave no answer until the deadline
        """
        while True:
            try:
                return self.call(method, path, body)
            except NoAnswerError:
                if time.monotonic() >= deadline or not processes.read(self.pid):
                    raise
            time.sleep(1.0)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Return the decoded answer of one REST call.

        :raises AirflowError: there was no answer, or its status is an error
        """
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data, headers=headers, method=method)
        try:
            with self.opener.open(request, timeout=ANSWER_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            detail = error.read().decode(errors="replace")[:500]
            kind = AirflowError if error.code < HTTPStatus.INTERNAL_SERVER_ERROR else NoAnswerError
            raise kind(f"{method} {path}: HTTP {error.code}: {detail}") from error
        except (OSError, HTTPException) as error:
            raise NoAnswerError(f"{method} {path}: {error}") from error
        return json.loads(text) if text else None

    def stop(self) -> None:
        """End every process that came from this Airflow."""
        processes.end(self.pid, str(self.folder))
        self.state.unlink(missing_ok=True)


def leftover(folder: Path) -> tuple[int, int] | None:
    """Return pid and port of the Airflow that an earlier call left running, or None.

    The pid is -1 when the leading process has ended but other processes of the demo are left.
    """
    try:
        note = json.loads((folder / "airflow.json").read_text())
        pid, start_time, port = int(note["pid"]), int(note["start_time"]), int(note["port"])
    except (OSError, ValueError, KeyError):
        return None
    now = processes.read(pid)
    if now and now.start_time == start_time:
        return pid, port
    return (-1, port) if processes.ours(-1, str(folder)) else None


def free_ports(preferred: int) -> int:
    """Return the first of three consecutive free ports, at or after the preferred one.

    :raises AirflowError: there are none
    """
    for first in range(preferred, 65534, 10):
        if not any(taken(first + more) for more in range(3)):
            return first
    raise AirflowError(f"No three consecutive ports are free from {preferred} on. Try: scripts/demo --port 20000")


def taken(port: int) -> bool:
    """Return whether a program listens on a port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False
