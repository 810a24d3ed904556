"""Airflow home with an empty store, and CLI commands in it.

Use it with ``pytest_plugins = ["tests.support.cli_world"]``. The modules of a test process share one command server and
its metadata database, which each module replaces. Each module has its own home, so its own store.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from testbed.netns import NamespaceHost
from tests.support.forking_cli import Done, ForkingCli
from tests.support.lock_dirs import new_lock_dir

ROOT = Path(__file__).parents[2]
AIRFLOW = (sys.executable, "-m", "airflow")


class World:
    """Airflow home with a metadata database and an empty store, and CLI commands in it.

    :param folder: an empty folder, which is HOME for the commands
    :param commands: server of commands, whose metadata database is replaced
    :param migrated: a migrated metadata database
    """

    def __init__(self, folder: Path, commands: ForkingCli, migrated: Path) -> None:
        self.folder, self.commands = folder, commands
        for name in ("state", "airflow"):
            (folder / name).mkdir()
        self.own = {"HOME": str(folder), "AIRFLOW_HOME": str(folder / "airflow")}
        self.environment = {**commands.environment, **self.own}
        _copy_database(migrated, _metadata_file(commands.environment))

    def airflow(self, *arguments: str, given: bytes = b"") -> Done:
        return self.commands.run(*arguments, given=given, variables=self.own)

    def on_terminal(self, terminal: str, *arguments: str) -> int:
        return self.commands.run_on_terminal(terminal, *arguments, variables=self.own)

    def __call__(self, *arguments: str, given: bytes = b"") -> Done:
        done = self.airflow("dtrain", *arguments, given=given)
        assert "Traceback" not in done.err
        return done

    def rows(self, *arguments: str) -> Any:
        done = self(*arguments, "-o", "json")
        assert done.code == 0, done.err
        return done.json

    def add_local_host(self) -> None:
        """Register the host ``local`` with two CPU slots, in folders of its own."""
        folders = ("--state-dir", str(self.folder / "state"), "--remote-dir", str(self.folder / "remote"))
        locks = ("--lock-dir", new_lock_dir(self.folder))
        done = self("hosts", "add", "local", "--slots", "cpu:2", *folders, *locks)
        assert done.code == 0, done.err

    def file(self, name: str, text: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def connect(self, host: NamespaceHost, conn_id: str, *, host_key: bool = False) -> None:
        document = json.loads(host.airflow_conn(host_key=host_key))
        done = self.airflow("connections", "add", conn_id, "--conn-json", json.dumps(document))
        assert done.code == 0, done.err


def _metadata_file(environment: Mapping[str, str]) -> Path:
    return Path(environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].removeprefix("sqlite:///"))


def _copy_database(source: Path, target: Path) -> None:
    """Replace a SQLite database that no process has open by a copy of another one."""
    for suffix in ("", "-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    with closing(sqlite3.connect(source)) as read, closing(sqlite3.connect(target)) as written:
        read.backup(written)


@pytest.fixture(scope="session")
def airflow_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkingCli]:
    """Server of ``airflow`` commands, without a metadata database."""
    folder = tmp_path_factory.mktemp("airflow-commands")
    for name in ("airflow", "streams"):
        (folder / name).mkdir()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}
    commands = ForkingCli(
        folder / "streams",
        {
            **kept,
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode(),
            # As in the quickstart: doctor wants more connections to SQLite than tasks at a time.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_MAX_OVERFLOW": "-1",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
            "AIRFLOW__DTRAIN__KILL_GRACE_S": "2",
            "PYTHONPATH": path,
        },
    )
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def migrated_metadata(tmp_path_factory: pytest.TempPathFactory, airflow_commands: ForkingCli) -> Path:
    """A migrated metadata database, created by the first test process that needs one."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    found = root / "airflow.db"
    with (root / "airflow.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            done = airflow_commands.run("db", "migrate")
            assert done.code == 0, done.err
            _copy_database(_metadata_file(airflow_commands.environment), found)
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, airflow_commands: ForkingCli, migrated_metadata: Path) -> World:
    return World(tmp_path_factory.mktemp("cli"), airflow_commands, migrated_metadata)
