"""Airflow home with an empty store, and CLI commands in it.

Use it with ``pytest_plugins = ["tests.support.cli_world"]``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.netns import NamespaceHost
from tests.support.forking_cli import Done, ForkingCli

ROOT = Path(__file__).parents[2]
AIRFLOW = (sys.executable, "-m", "airflow")


class World:
    """Airflow home with a metadata database and an empty store, and CLI commands in it.

    :param migrated: AIRFLOW_HOME whose database is copied; None: create and migrate one
    """

    def __init__(self, folder: Path, migrated: Path | None = None) -> None:
        self.folder = folder
        for name in ("state", "streams", "airflow"):
            (folder / name).mkdir()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))
        } | {
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DTRAIN__KILL_GRACE_S": "2",
            "HOME": str(folder),
            "PYTHONPATH": path,
        }
        if migrated is None:
            command = [*AIRFLOW, "db", "migrate"]
            subprocess.run(command, env=self.environment, check=True, capture_output=True, timeout=180)
        else:
            shutil.copytree(migrated, folder / "airflow", dirs_exist_ok=True)
        self.commands = ForkingCli(folder / "streams", self.environment)

    def airflow(self, *arguments: str, given: bytes = b"") -> Done:
        return self.commands.run(*arguments, given=given)

    def __call__(self, *arguments: str, given: bytes = b"") -> Done:
        done = self.airflow("dtrain", *arguments, given=given)
        assert "Traceback" not in done.err
        return done

    def rows(self, *arguments: str) -> Any:
        done = self(*arguments, "-o", "json")
        assert done.code == 0, done.err
        return done.json

    def file(self, name: str, text: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def connect(self, host: NamespaceHost, conn_id: str, *, host_key: bool = False) -> None:
        document = json.loads(host.airflow_conn(host_key=host_key))
        done = self.airflow("connections", "add", conn_id, "--conn-json", json.dumps(document))
        assert done.code == 0, done.err


@pytest.fixture(scope="session")
def migrated_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = World(tmp_path_factory.mktemp("cli-template"))
    world.commands.close()
    return world.folder / "airflow"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, migrated_home: Path) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("cli"), migrated_home)
    yield world
    world.commands.close()
