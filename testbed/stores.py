"""Stores for tests and benchmarks: PostgreSQL servers, and records of hosts."""

from __future__ import annotations

import atexit
import functools
import glob
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import sqlalchemy as sa

from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord
from airflow_provider_dtrain.store.store import migrate

_NEW_IDENTITY = "UPDATE meta SET value = '{}' WHERE key = 'store_id'"


def server_programs() -> Path | None:
    """Return the folder of PostgreSQL's server programs."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb")) or glob.glob("/usr/pgsql-*/bin/initdb")
    on_path = shutil.which("initdb")
    return Path(found[-1]).parent if found else Path(on_path).parent if on_path else None


@functools.cache
def migrated_file() -> Path:
    """Return a migrated SQLite store, created once per process, from which others are copied."""
    folder = Path(tempfile.mkdtemp(prefix="dtrain-store-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    migrate(f"sqlite:///{folder}/s.db")
    return folder / "s.db"


def new_sqlite(path: Path) -> str:
    """Create a migrated SQLite store with an identity of its own, and return its URL."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copy(migrated_file(), path)
    path.chmod(0o600)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(_NEW_IDENTITY.format(uuid.uuid4()))
    return f"sqlite:///{path}"


class Server:
    """A PostgreSQL server in a temporary folder, reached through 127.0.0.1."""

    def __init__(self, programs: Path) -> None:
        self.programs, self.folder = programs, Path(tempfile.mkdtemp(prefix="dtrain-pg-"))
        self.as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.getuid() == 0 else []
        if self.as_user:
            shutil.chown(self.folder, "postgres", "postgres")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.numbers = count(1)
        self.has_template = False

    def start(self, *, fsync: bool = False) -> None:
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", "dtrain", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=60"
        options += "" if fsync else " -c fsync=off"
        self._run("pg_ctl", "-D", data, "-w", "-t", "60", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self) -> str:
        """Return the URL of an empty schema, which costs less than a database."""
        name = f"store{next(self.numbers)}"
        self._execute("postgres", f"CREATE SCHEMA {name}")
        return f"{self._url('postgres')}?options=-csearch_path%3D{name}"

    @contextmanager
    def new_store(self) -> Iterator[str]:
        """Create a migrated store with an identity of its own, yield its URL, and drop it."""
        if not self.has_template:
            self._execute("postgres", "CREATE DATABASE migrated")
            migrate(self._url("migrated"))
            self.has_template = True
        name = f"store{next(self.numbers)}"
        self._execute("postgres", f"CREATE DATABASE {name} TEMPLATE migrated STRATEGY file_copy")
        self._execute(name, _NEW_IDENTITY.format(uuid.uuid4()))
        try:
            yield self._url(name)
        finally:
            self._execute("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    def _url(self, database: str) -> str:
        return f"postgresql+psycopg://dtrain@127.0.0.1:{self.port}/{database}"

    def _execute(self, database: str, statement: str) -> None:
        engine = sa.create_engine(self._url(database), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(statement))
        engine.dispose()

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self.as_user, str(self.programs / program), *arguments]
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        # The server keeps the output of pg_ctl open: a pipe would never end.
        with (self.folder.parent / f"{self.folder.name}.out").open("wb") as output:
            done = subprocess.run(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, cwd="/", timeout=90
            )
        text = Path(output.name).read_text()
        os.unlink(output.name)
        if done.returncode:
            raise RuntimeError(f"{program}: {text[-2000:]}")


def host(name: str, slots: int = 8, pool: str = "gpus", **fields: object) -> HostRecord:
    records = tuple(SlotRecord(index=i, device=f"GPU-{name}-{i}", memory_bytes=80 * 2**30) for i in range(slots))
    defaults = {"slot_type": "cuda", "machine_id": f"m-{name}", "boot_id": f"b-{name}", "pid_ns": "4026531836"}
    return HostRecord(name=name, pool=pool, slots=records, **{**defaults, **fields})
