"""Database engines: URL rules, transactions of each dialect, and safety across forks."""

from __future__ import annotations

import json
import math
import os
import select
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.url import URL
from sqlalchemy.types import TypeDecorator

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.states import State
from airflow_provider_dtrain.errors import StoreError
from airflow_provider_dtrain.store.database import durability

BUSY_TIMEOUT_S = 30
#: Longest wait of a fork for transactions of other threads.
FORK_WAIT_S = 10.0
#: Executions of a statement on a PostgreSQL connection before it is prepared, and most prepared statements on each.
PREPARE_AFTER, PREPARED_MAX = 5, 200
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time on every dialect, because SQLite by itself drops the zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Return the value in UTC.

        :raises ValueError: the time is naive
        """
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"A time in the store must have a time zone, got {value!r}. Use datetime.now(UTC).")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Return the stored time with its zone."""
        return None if value is None else aware(value)


class StateName(TypeDecorator[State]):
    """State of one kind, which the database has as its name."""

    impl = sa.String(16)
    cache_ok = True

    def __init__(self, kind: type[State]) -> None:
        super().__init__()
        self.kind = kind
        self._members = {str(member): member for member in kind}

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        """Return the name of the state."""
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Any) -> State | None:
        """Return the state.

        :raises KeyError: there is no such state
        """
        return None if value is None else self._members[value]


def aware(value: datetime) -> datetime:
    """Return a time of a driver with its zone, UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def utcnow() -> datetime:
    """Return the current time as aware UTC."""
    return datetime.now(UTC)


def dump_json(value: Any) -> str:
    """Return JSON that every database accepts, with NaN and infinities as their names."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def restore_floats(metrics: JsonObject) -> JsonObject:
    """Return metrics with NaN and infinities in place of their names."""
    return {k: NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in metrics.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def parse_url(url: str) -> URL:
    """Return the parsed URL of a store.

    :raises StoreError: not a URL, a relative SQLite path, or a database that is not supported
    """
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise StoreError(f"[dtrain] sql_alchemy_conn must be a database URL, for example {_EXAMPLE}") from error
    shown = parsed.render_as_string(hide_password=True)
    name = parsed.get_backend_name()
    if name not in {"sqlite", "postgresql"}:
        raise StoreError(f"The store must be SQLite or PostgreSQL, got a {name!r} database ({shown}). Use {_EXAMPLE}")
    if name == "sqlite" and not (parsed.database or "").startswith("/"):
        raise StoreError(
            f"The path of the SQLite store must be absolute, got {shown}. With a relative path or a database in memory "
            "each process would have its own store. Use four slashes: sqlite:////srv/airflow/dtrain.db"
        )
    if name == "sqlite" and parsed.drivername not in {"sqlite", "sqlite+pysqlite"}:
        raise StoreError(f"The store does not support the driver {parsed.drivername!r}. Use sqlite:////PATH.")
    return parsed


_EXAMPLE = "sqlite:////srv/airflow/dtrain.db or postgresql+psycopg://user:password@db/dtrain"


def make_engine(url: URL) -> Engine:
    """Return an engine whose connections never cross a fork.

    :raises StoreError: the driver of the URL is not installed
    """
    try:
        engine = _sqlite(url) if url.get_backend_name() == "sqlite" else _postgresql(url)
    except (ModuleNotFoundError, sa.exc.NoSuchModuleError) as error:
        raise StoreError(
            f"The database driver for {url.drivername!r} is not installed ({error}). For PostgreSQL: "
            "pip install 'airflow-provider-dtrain[postgres]' and begin the URL with postgresql+psycopg://"
        ) from error
    if engine.dialect.is_async:
        raise StoreError(f"The store needs a synchronous driver, got {url.drivername!r}. Use postgresql+psycopg://")
    _gate.engines.add(engine)
    return engine


def _sqlite(url: URL) -> Engine:
    engine = sa.create_engine(
        url,
        json_serializer=dump_json,
        hide_parameters=True,
        connect_args={"timeout": BUSY_TIMEOUT_S},
        pool_timeout=BUSY_TIMEOUT_S,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        # Otherwise Python's sqlite3 begins transactions by itself, and deferred ones.
        connection.isolation_level = None
        durability.configure_sqlite(connection, str(url.database))

    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgresql(url: URL) -> Engine:
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    is_psycopg = url.drivername == "postgresql+psycopg"
    arguments = {"prepare_threshold": None} if is_psycopg else {}
    engine = sa.create_engine(
        url,
        json_serializer=dump_json,
        hide_parameters=True,
        isolation_level="READ COMMITTED",
        pool_pre_ping=not is_psycopg,
        connect_args=arguments,
    )
    if is_psycopg:
        event.listen(engine, "connect", _prepare_if_direct)
        event.listen(engine, "checkout", _refuse_closed)
    return engine


def _prepare_if_direct(connection: Any, _record: Any) -> None:
    """Enable prepared statements on a new connection, unless it goes through a pooler.

    A pooler (pgbouncer) may send the next statement to another server process, which does not know the statements
    that the first one prepared. A pooler also reports process ids of its own to its clients, which identifies it here.
    """
    # Not through a cursor, which would begin a transaction.
    answer = connection.pgconn.exec_(b"SELECT pg_backend_pid()")
    if answer.get_value(0, 0) == str(connection.info.backend_pid).encode():
        connection.prepare_threshold = PREPARE_AFTER
        connection.prepared_max = PREPARED_MAX
        durability.configure_psycopg(connection)


def is_pooled(conn: Connection) -> bool:
    """Return whether a connection to PostgreSQL goes through a pooler."""
    return getattr(conn.connection.dbapi_connection, "prepare_threshold", PREPARE_AFTER) is None


def _refuse_closed(connection: Any, _record: Any, _proxy: Any) -> None:
    """Refuse a connection that the server has closed, so that the pool opens a new one.

    Unlike a ping, this check costs no round trip.
    """
    if not connection.closed:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        # The only data that an idle connection can receive is its end.
        if not poll.poll(0):
            return
    raise sa.exc.DisconnectionError("the server has closed the connection")


def _begin_sqlite(connection: Connection) -> None:
    deferred = connection.get_execution_options().get("dtrain_reads", False)
    # A deferred transaction that writes later can fail with SQLITE_BUSY at once, without waiting.
    connection.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")


def create_sqlite_file(path: Path) -> None:
    """Create the folder (0700) and the file (0600) of a SQLite store unless they exist.

    :raises StoreError: the folder or the file cannot be created
    """
    try:
        missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"The store {path} cannot be opened: {error.strerror}. Check its folder and owner.") from error


def file_system_of(path: Path) -> str:
    """Return the type of the file system that holds a path, e.g. ``ext4``."""
    best = ""
    kind = "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, fs_type, *_ = line.split(" ")
        inside = str(path) == mount or str(path).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best = mount
            kind = fs_type
    return kind


class ForkGate:
    """Gate that lets a process fork only while it has no open database connection.

    A SQLite connection that is open at the fork makes the child share the parent's file locks in SQLite's own
    records, but not in the kernel. When the parent closes, it deletes the log that the child writes to, and the
    child's commits are lost. So a fork waits for running transactions and closes all idle connections.
    """

    def __init__(self) -> None:
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._busy: dict[int, int] = {}
        self._forking = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Delay forks by other threads during the block."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._forking or me in self._busy, timeout=FORK_WAIT_S)
            self._busy[me] = self._busy.get(me, 0) + 1
        changed = self._changed
        busy = self._busy
        try:
            yield
        finally:
            with changed:
                busy[me] -= 1
                if not busy[me]:
                    del busy[me]
                changed.notify_all()

    def before(self) -> None:
        """Wait until running transactions have ended, then close every idle connection."""
        deadline = time.monotonic() + FORK_WAIT_S
        me = threading.get_ident()
        with self._changed:
            self._forking += 1
            self._changed.wait_for(lambda: not set(self._busy) - {me}, timeout=deadline - time.monotonic())
        for engine in list(self.engines):
            engine.dispose()

    def after_in_parent(self) -> None:
        """Allow new transactions again."""
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Create new locks and pools.

        The old locks may be held by threads that do not exist in the child.
        """
        self._reset()
        for engine in list(self.engines):
            engine.dispose(close=False)


_gate = ForkGate()
gate = _gate
os.register_at_fork(before=_gate.before, after_in_parent=_gate.after_in_parent, after_in_child=_gate.after_in_child)
