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
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_provider_dtrain.store.database.schema import VERSION_TABLE
from airflow_provider_dtrain.store.database.tables import metadata
from airflow_provider_dtrain.store.records.trials import HostRecord, SlotRecord
from airflow_provider_dtrain.store.store import migrate

_NEW_IDENTITY = "UPDATE meta SET value = '{}' WHERE key = 'store_id'"
_END_SESSIONS = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()"""
_RESTART_SEQUENCES = "SELECT setval(seqrelid, seqstart, false) FROM pg_sequence"
#: What a test may change beside the rows of tables: schema, functions, triggers and settings.
_SCHEMA = """SELECT
    (SELECT string_agg(relname || ' ' || relnatts, ',' ORDER BY relname) FROM pg_class
     WHERE relnamespace = 'public'::regnamespace),
    (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace),
    (SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal),
    (SELECT count(*) FROM pg_db_role_setting)"""


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


@dataclass(frozen=True)
class _Template:
    """Schema and rows of a new store."""

    schema: sa.Row[Any]
    revision: str
    rows: dict[str, list[dict[str, Any]]]

    @classmethod
    def read(cls, connection: sa.Connection) -> _Template:
        """Read the store that a connection leads to."""
        found = {table.name: connection.execute(sa.select(table)).mappings() for table in metadata.sorted_tables}
        return cls(
            schema=connection.execute(sa.text(_SCHEMA)).one(),
            revision=connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one(),
            rows={name: [dict(row) for row in rows] for name, rows in found.items()},
        )

    def restore(self, connection: sa.Connection) -> None:
        """Replace all rows of another store. Foreign keys are not checked, so the order of tables has no effect."""
        deletions = [f"DELETE FROM {name}" for name in (*self.rows, VERSION_TABLE)]
        connection.exec_driver_sql("; ".join(["SET session_replication_role = replica", *deletions]))
        for name, rows in self.rows.items():
            if rows:
                connection.execute(metadata.tables[name].insert(), rows)
        connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES ('{self.revision}')")
        connection.execute(sa.text(_RESTART_SEQUENCES))


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
        self._template: _Template | None = None
        self._emptied: list[str] = []

    def start(self, *, fsync: bool = False) -> None:
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", "dtrain", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.resume(fsync=fsync)

    def stop(self) -> None:
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    def halt(self) -> None:
        """End the server as a crash does. Its data stay."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")

    def resume(self, *, fsync: bool = False) -> None:
        """Start the server on the data that it has."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c max_connections=60"
        options += "" if fsync else " -c fsync=off"
        data = str(self.folder / "data")
        self._run("pg_ctl", "-D", data, "-w", "-t", "60", "-l", str(self.folder / "log"), "-o", options, "start")

    def new_database(self) -> str:
        """Return the URL of an empty schema, which costs less than a database."""
        name = f"store{next(self.numbers)}"
        self._execute("postgres", f"CREATE SCHEMA {name}")
        return f"{self._url('postgres')}?options=-csearch_path%3D{name}"

    def add_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        self._execute("postgres", f"CREATE DATABASE {name}")
        return self._url(name)

    @contextmanager
    def new_store(self) -> Iterator[str]:
        """Provide a migrated store with an identity of its own, and yield its URL.

        A store is used again after its rows were deleted, which costs a fifth of a new database.
        """
        name = self._emptied.pop() if self._emptied else self._new_from_template()
        yield self._url(name)
        if self._empty(name):
            self._emptied.append(name)
        else:
            self._execute("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    def _new_from_template(self) -> str:
        if self._template is None:
            self._execute("postgres", "CREATE DATABASE migrated")
            migrate(self._url("migrated"))
            with self._connect("migrated") as connection:
                self._template = _Template.read(connection)
        name = f"store{next(self.numbers)}"
        self._execute("postgres", f"CREATE DATABASE {name} TEMPLATE migrated STRATEGY file_copy")
        self._execute(name, _NEW_IDENTITY.format(uuid.uuid4()))
        return name

    def _empty(self, name: str) -> bool:
        """Restore the rows of the template, and return whether everything else is still as in the template."""
        assert self._template is not None
        with self._connect(name) as connection:
            connection.execute(sa.text(_END_SESSIONS))
            if self._template.schema != connection.execute(sa.text(_SCHEMA)).one():
                return False
            self._template.restore(connection)
            connection.execute(sa.text(_NEW_IDENTITY.format(uuid.uuid4())))
        return True

    def _url(self, database: str) -> str:
        return f"postgresql+psycopg://dtrain@127.0.0.1:{self.port}/{database}"

    def _execute(self, database: str, statement: str) -> None:
        with self._connect(database) as connection:
            connection.execute(sa.text(statement))

    @contextmanager
    def _connect(self, database: str) -> Iterator[sa.Connection]:
        engine = sa.create_engine(self._url(database), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            yield connection

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
