"""Complete Airflow (scheduler, triggerer, DAG processor, API server) for tests, with its own home."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 420.0
STOP_TIMEOUT_S = 15.0
#: Time-out of one request to an API server on a busy machine.
ANSWER_TIMEOUT_S = 180.0
POLL_S = 0.5


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], Any], *, timeout_s: float, what: str, poll_s: float = POLL_S) -> Any:
    """Return the first true value of the condition.

    :raises TimeoutError: the condition stayed false
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(poll_s)


class AirflowApi:
    """Requests to an API server of Airflow.

    :param base: its URL, without a slash at the end
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self._token = ""

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.base + path, data=data, headers=headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:  # noqa: S310
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read()[:2000]!r}") from None

    def token(self, user: str, password: str | None = None) -> str:
        """Return the token of a user, whose password is the name unless another one is given."""
        login = {"username": user, "password": password or user}
        return str(self._request("POST", "/auth/token", login)["access_token"])

    def log_in(self, user: str, password: str | None = None) -> None:
        """Send all later requests as a user."""
        self._token = self.token(user, password)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer of ``/api/v2<path>``."""
        return self._request(method, f"/api/v2{path}", body)

    def page(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer of a route of the provider's pages."""
        return self._request(method, f"/dtrain/api/v1{path}", body)

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a DAG run once Airflow knows the DAG, and return its run id."""

        def known() -> bool:
            return any(dag["dag_id"] == dag_id for dag in self.api("GET", "/dags?limit=100")["dags"])

        try:
            wait_until(known, timeout_s=240, what=f"DAG {dag_id}")
        except TimeoutError as error:
            raise RuntimeError(f"{error}; import errors: {self.api('GET', '/importErrors')}") from None
        run = self.api("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": dict(conf or {})})
        return str(run["dag_run_id"])

    def state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a DAG run."""
        return str(self.api("GET", f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}")["state"])

    def wait(self, dag_id: str, run_id: str, *, timeout_s: float = 180.0) -> str:
        """Return the final state of a DAG run, even when the API server is temporarily down."""

        def ended() -> str | None:
            with contextlib.suppress(OSError):
                state = self.state(dag_id, run_id)
                return state if state in ("success", "failed") else None
            return None

        return str(wait_until(ended, timeout_s=timeout_s, what=f"the end of {dag_id}"))

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return a task instance."""
        path = f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}/taskInstances/{task_id}"
        return dict(self.api("GET", path if map_index < 0 else f"{path}/{map_index}"))

    def wait_task(self, dag_id: str, run_id: str, task_id: str, *states: str, timeout_s: float = 90.0) -> str:
        """Return the task instance's state once it is one of ``states``."""

        def there() -> str | None:
            state = self.task(dag_id, run_id, task_id)["state"]
            return state if state in states else None

        return str(wait_until(there, timeout_s=timeout_s, what=f"{task_id} in {states}"))

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Set the state of a task instance, as the UI's mark-as buttons do."""
        path = f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}/taskInstances/{task_id}"
        self.api("PATCH", path, {"new_state": state})

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return an XCom value."""
        path = f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        value = self.api("GET", path + "?deserialize=true")["value"]
        return json.loads(value) if isinstance(value, str) and value[:1] in "{[" else value

    def log(self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1, map_index: int = -1) -> str:
        """Return a task instance's log as text."""
        path = (
            f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id)}/taskInstances/{task_id}/logs/{try_number}"
            f"?full_content=true&map_index={map_index}"
        )
        content = self.api("GET", path)["content"]
        lines = content if isinstance(content, list) else [content]
        return "\n".join(json.dumps(line) if isinstance(line, dict) else str(line) for line in lines)


class Standalone(AirflowApi):
    """``airflow standalone`` in its own process session.

    :param home: empty AIRFLOW_HOME
    :param dags: DAGs folder
    :param environment: further variables, e.g. ``AIRFLOW_CONN_*``
    """

    def __init__(self, home: Path, dags: Path, environment: Mapping[str, str] | None = None) -> None:
        self.home, self.port = home, free_port()
        super().__init__(f"http://127.0.0.1:{self.port}")
        self.environment = self._environment(dags) | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    def _environment(self, dags: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        root = str(Path(__file__).parents[1])
        return kept | {
            "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', '')}",
            "PYTHONPATH": f"{root}:{kept.get('PYTHONPATH', '')}".rstrip(":"),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__PARALLELISM": "6",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.base}/execution/",
            "AIRFLOW__API__BASE_URL": self.base,
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            # Files that did not change are not parsed again: that took a tenth of a core.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            # With SQLite, tasks that start together may take all 15 connections of the API server, which then waits
            # for one in the thread that would return one.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_MAX_OVERFLOW": "-1",
            # A busy machine may exceed the 5 s that a worker waits for an answer by default.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        }

    # -- life ----------------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        """Process whose children are the components of Airflow."""
        assert self._process is not None
        return self._process.pid

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start Airflow and wait until scheduler, triggerer and DAG processor are healthy."""
        log = (self.home / "standalone.log").open("wb")
        command = [sys.executable, "-m", "airflow", "standalone"]
        self._process = subprocess.Popen(
            command,
            env=self.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(self.healthy, timeout_s=timeout_s, what="airflow standalone")
        self.log_in("admin")

    def stop(self) -> None:
        """End every process of this Airflow."""
        if self._process is None:
            return
        for sign, timeout_s in ((signal.SIGTERM, STOP_TIMEOUT_S), (signal.SIGKILL, STOP_TIMEOUT_S)):
            try:
                os.killpg(self._process.pid, sign)
                wait_until(self._gone, timeout_s=timeout_s, what="airflow's end")
            except (ProcessLookupError, TimeoutError):
                continue
        self._process.wait(timeout=STOP_TIMEOUT_S)

    def _gone(self) -> bool:
        assert self._process is not None
        self._process.poll()
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def healthy(self) -> bool:
        """Return whether all components of Airflow report that they are healthy."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self.home / "standalone.log").read_text()[-4000:])
        try:
            health = self._request("GET", "/api/v2/monitor/health")
        except (OSError, ValueError):
            return False
        return all(health[part]["status"] == "healthy" for part in ("scheduler", "triggerer", "dag_processor"))

    def token(self, user: str, password: str | None = None) -> str:
        """Return the token of a user, or of an administrator if every user is one."""
        if self.environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] == "True":
            return str(self._request("GET", "/auth/token")["access_token"])
        return super().token(user, password)
