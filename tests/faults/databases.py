"""Databases of a world, and their faults: stopped, locked, killed, restored from a backup."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from airflow_provider_dtrain.store.store import migrate
from testbed.standalone import wait_until
from testbed.stores import Server, server_programs


class Database(Protocol):
    """Database of a store, with the faults that it can have."""

    name: str
    url: str

    def locked(self) -> contextlib.AbstractContextManager[None]: ...

    def kill(self) -> None: ...

    def come_back(self) -> None: ...

    def backup(self) -> None: ...

    def restore(self) -> None: ...

    def close(self) -> None: ...


class Sqlite:
    """One SQLite file. It has no server that could be killed."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path, self.saved = folder / "dtrain.db", folder / "backup.db"
        self.url = f"sqlite:///{self.path}"
        migrate(self.url)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Block every writer."""
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")
            connection.close()

    def kill(self) -> None:
        return

    def come_back(self) -> None:
        return

    def backup(self) -> None:
        with (
            contextlib.closing(sqlite3.connect(self.path)) as source,
            contextlib.closing(sqlite3.connect(self.saved)) as target,
        ):
            source.backup(target)

    def restore(self) -> None:
        """Replace the database by the backup. No process may have the store open."""
        for suffix in ("-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        shutil.copy(self.saved, self.path)

    def close(self) -> None:
        return


class Postgresql:
    """A PostgreSQL server of this world alone."""

    name = "postgresql"

    def __init__(self, folder: Path) -> None:
        programs = server_programs()
        if programs is None:
            raise RuntimeError("PostgreSQL's server programs (initdb, pg_ctl) are not installed")
        self.server = Server(programs)
        self.server.start()
        self.url, self.saved = self.server.new_database(), folder / "backup.sql"
        migrate(self.url)

    @property
    def data(self) -> Path:
        return self.server.folder / "data"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        import psycopg

        with psycopg.connect(self.dsn) as connection:
            connection.execute("LOCK TABLE attempts, pools, trials IN ACCESS EXCLUSIVE MODE")
            try:
                yield
            finally:
                connection.rollback()

    @property
    def dsn(self) -> str:
        return self.url.replace("postgresql+psycopg://", "postgresql://")

    def kill(self) -> None:
        """Kill the server and its child processes with SIGKILL."""
        pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in [pid, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    def come_back(self) -> None:
        """Restart the server on its data. Shared memory of dying child processes may delay the start."""
        options = f"-p {self.server.port} -k {self.server.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        options += " -c max_connections=60"
        log = str(self.server.folder / "log")

        def started() -> bool:
            try:
                self.server._run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-l", log, "-o", options, "start")
            except RuntimeError:
                return False
            return True

        wait_until(started, timeout_s=90, what="PostgreSQL's return")

    def backup(self) -> None:
        self.saved.write_text("")
        import psycopg

        self.tables: dict[str, tuple[list[str], list[tuple[object, ...]]]] = {}
        with psycopg.connect(self.dsn) as connection:
            query = "SELECT sequencename, COALESCE(last_value, 1), last_value IS NOT NULL FROM pg_sequences"
            self.sequences = connection.execute(f"{query} WHERE schemaname = current_schema()").fetchall()
            for table in self._names(connection):
                cursor = connection.execute(f"SELECT * FROM {table}")
                assert cursor.description is not None
                self.tables[table] = [column.name for column in cursor.description], list(cursor.fetchall())

    def restore(self) -> None:
        import psycopg
        from psycopg.types.json import Json

        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(f"TRUNCATE {', '.join(self.tables)} CASCADE")
            for sequence, value, is_used in self.sequences:
                connection.execute("SELECT setval(%s::regclass, %s, %s)", [sequence, value, is_used])
            for table, (columns, rows) in self.tables.items():
                for row in rows:
                    values = [Json(value) if isinstance(value, dict | list) else value for value in row]
                    marks = ", ".join(["%s"] * len(values))
                    connection.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)

    def _names(self, connection: object) -> list[str]:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
        return [row[0] for row in connection.execute(query).fetchall()]  # type: ignore[attr-defined]

    def close(self) -> None:
        self.server.stop()


def hold_lock(database: Database, seconds: float) -> threading.Thread:
    """Lock the store for some seconds in a background thread."""

    def work() -> None:
        with database.locked():
            time.sleep(seconds)

    thread = threading.Thread(target=work, name="lock", daemon=True)
    thread.start()
    return thread


DATABASES = {"sqlite": Sqlite, "postgresql": Postgresql}
