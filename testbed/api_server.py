"""``airflow api-server`` for tests of pages and of the API: its own AIRFLOW_HOME, users of every role, a free port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.roles import role_options
from testbed.standalone import free_port, wait_until

START_TIMEOUT_S = 300.0
#: Requests that a browser keeps open would delay the end.
STOP_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 60.0


class ApiServer:
    """An API server with the UI, without scheduler and triggerer.

    :param home: AIRFLOW_HOME; created if needed
    :param store_url: of the store that the pages show
    :param environment: further variables, e.g. ``AIRFLOW__DTRAIN__...``
    """

    def __init__(self, home: Path, store_url: str, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        (home / "dags").mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}
        self.environment = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', '')}",
            "PYTHONPATH": f"{Path(__file__).parents[1]}:{kept.get('PYTHONPATH', '')}".rstrip(":"),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            **role_options(home),
            "AIRFLOW__API__BASE_URL": self.base,
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of a test, of which no other server knows",
            "AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN": store_url,
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.home / "api-server.log"

    @property
    def pid(self) -> int:
        """Process id of the server, which is also its group's."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it answers. The metadata database must be migrated."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "api-server"], env=self.environment, stdout=log,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        wait_until(self._answers, timeout_s=START_TIMEOUT_S, what="airflow api-server", poll_s=0.2)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(self.log.read_text()[-4000:])
        try:
            return self.request("GET", "/api/v2/version")[0] == 200
        except OSError:
            return False

    def use(self, base: str) -> None:
        """Use a server that runs already.

        :param base: its URL
        """
        self.base = base

    def stop(self) -> None:
        """End the server and its workers."""
        if self._process is None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, sign)
                self._process.wait(timeout=STOP_TIMEOUT_S)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
            break
        self._process = None

    def token(self, user: str) -> str:
        """Return the token of a user."""
        status, answer = self.request("POST", "/auth/token", {"username": user, "password": user})
        assert status in {200, 201}, (status, answer)
        return str(answer["access_token"])

    def request(
        self, method: str, path: str, body: Any = None, *, token: str = "", headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return status and JSON of an answer, also of a refusal.

        :param token: sent as bearer token
        """
        data = json.dumps(body).encode() if body is not None else None
        given = {"Content-Type": "application/json", **(headers or {})}
        if token:
            given["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.base + path, data=data, headers=given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
                return answer.status, _parsed(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _parsed(error.read())


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content or b"null")
    except ValueError:
        return content.decode("utf-8", "replace")
