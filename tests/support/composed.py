"""The services of docker/compose.yaml, started by podman-compose."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from testbed.images import Builder
from testbed.own_podman import Podman, why_no_own_podman
from testbed.standalone import AirflowApi, wait_until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
#: An image build downloads half a GB on a machine with two busy cores.
BUILD_S = 2400.0
START_S = 900.0


def compose_program() -> str | None:
    """Return the path of podman-compose, which is a Python package."""
    return shutil.which("podman-compose", path=str(Path(sys.executable).parent)) or shutil.which("podman-compose")


def why_no_compose() -> str | None:
    """Return the reason why the services cannot be started here, None if they can."""
    if reason := why_no_own_podman():
        return reason
    return None if compose_program() else "podman-compose is not installed (pip install podman-compose)"


class Composed(AirflowApi):
    """The services, and requests to their API server."""

    def __init__(self, podman: Podman, builder: Builder, *, port: int = 8080) -> None:
        super().__init__(f"http://127.0.0.1:{port}")
        self.podman, self.builder = podman, builder
        self.variables = {"DTRAIN_TORCH_INDEX": "", "DTRAIN_PORT": str(port), "PYTHONUNBUFFERED": "1"}

    def compose(self, *arguments: str, timeout_s: float = 300.0, online: bool = False, check: bool = True) -> str:
        """Run a command of podman-compose in docker/, and return what it printed."""
        program = str(compose_program())
        done = self.podman.run(
            program, *arguments, cwd=FOLDER, online=online, timeout_s=timeout_s, check=check, variables=self.variables
        )
        return done.stdout + done.stderr

    def shell(self, script: str, folder: Path, *, timeout_s: float = 600.0) -> str:
        """Run lines of a page that call ``docker compose``, in a folder, and return what they printed."""
        programs = self.podman.folder / "programs"
        programs.mkdir(exist_ok=True)
        docker = programs / "docker"
        docker.write_text(f'#!/bin/sh\nshift\nexec {compose_program()} -f {FOLDER}/compose.yaml "$@"\n')
        docker.chmod(0o755)
        variables = {**self.variables, "PATH": f"{programs}:{os.environ['PATH']}"}
        return self.podman.run(
            "bash", "-euo", "pipefail", "-c", script, cwd=folder, timeout_s=timeout_s, variables=variables
        ).stdout

    def build(self) -> float:
        """Build the images, and return the seconds that it took."""
        began = time.monotonic()
        options = " ".join(self.builder.options)
        self.compose(f"--podman-build-args={options}", "build", online=True, timeout_s=BUILD_S)
        return time.monotonic() - began

    def up(self) -> float:
        """Start the services, and return the seconds until Airflow was healthy."""
        began = time.monotonic()
        self.compose("up", "--detach", "--no-build")
        self.log_in_when_healthy()
        return time.monotonic() - began

    def log_in_when_healthy(self) -> None:
        """Wait until Airflow is healthy, and log in with the password that it has made."""
        wait_until(self.healthy, timeout_s=START_S, what="Airflow in its container")
        passwords = json.loads(self.exec("airflow", "cat", "simple_auth_manager_passwords.json.generated"))
        self.log_in("admin", passwords["admin"])

    def down(self, *options: str) -> None:
        """Remove the containers."""
        self.compose("down", "--timeout", "20", *options)

    def container(self, service: str) -> str:
        """Return the name of the container of a service."""
        return f"dtrain_{service}_1"

    def healthy(self) -> bool:
        """Return whether the health check of Airflow passes.

        :raises RuntimeError: its container has ended
        """
        done = self.podman.run("podman", "healthcheck", "run", self.container("airflow"), check=False)
        if done.returncode == 0:
            return True
        if not self.is_running("airflow"):
            raise RuntimeError(f"The container of Airflow has ended:\n{self.logs('airflow')[-6000:]}")
        return False

    def is_running(self, service: str) -> bool:
        """Return whether the container of a service runs."""
        name = self.container(service)
        done = self.podman.run("podman", "container", "inspect", "--format", "{{.State.Running}}", name, check=False)
        return done.stdout.strip() == "true"

    def logs(self, service: str) -> str:
        """Return what a service has printed."""
        done = self.podman.run("podman", "logs", self.container(service), check=False)
        return done.stdout + done.stderr

    def exec(self, service: str, *argv: str, user: str | None = None, check: bool = True) -> str:
        """Run a command in the container of a service, and return its output."""
        options = [f"--user={user}"] if user else []
        done = self.podman.run("podman", "exec", *options, self.container(service), *argv, check=check)
        return done.stdout + ("" if check else done.stderr)

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        with self.podman.network():
            return super()._request(method, path, body)

    def run(self, dag_id: str, conf: dict[str, Any], *, timeout_s: float = 900.0) -> tuple[str, str]:
        """Return state and id of a finished run of a DAG, which may be paused."""
        run_id = self.trigger(dag_id, conf)
        self.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})
        return self.wait(dag_id, run_id, timeout_s=timeout_s), run_id
