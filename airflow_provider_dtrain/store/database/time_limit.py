"""Time limits of transactions: the database itself ends a statement whose caller no longer waits.

A caller that gives up leaves its thread behind. Without a limit in the database, the statement goes on and keeps the
thread, a connection and a process of the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_provider_dtrain.errors import StoreUnavailableError
from airflow_provider_dtrain.store.database.connections import is_pooled

#: Key of a connection's facts: the limit that its session has now, in milliseconds; absent: that of the server.
_SESSION = "dtrain_statement_timeout"


class TimeLimit:
    """Time that a caller waits for its transactions.

    PostgreSQL ends each statement after this time. SQLite knows no such limit: :meth:`interrupt` ends its statement.

    :param seconds: from now on
    """

    def __init__(self, seconds: float) -> None:
        self.statement_ms = max(1, int(seconds * 1000))
        self.ends_at = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._running: Any = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Limit the transactions of this context."""
        token = _LIMIT.set(self)
        try:
            yield
        finally:
            _LIMIT.reset(token)

    def check(self) -> None:
        """Check that the caller still waits.

        :raises StoreUnavailableError: the time is over
        """
        if time.monotonic() > self.ends_at:
            raise StoreUnavailableError(f"A transaction of the store had more than {self.statement_ms / 1000:g} s.")

    @contextmanager
    def running(self, connection: Any) -> Iterator[None]:
        """Let :meth:`interrupt` end the statements of a connection of SQLite during the block."""
        with self._lock:
            self._running = connection
        try:
            yield
        finally:
            with self._lock:
                self._running = None

    def interrupt(self) -> None:
        """End the statement that a connection of SQLite executes now. Any thread may call it."""
        with self._lock:
            if self._running is not None:
                self._running.interrupt()


_LIMIT: ContextVar[TimeLimit | None] = ContextVar("dtrain_time_limit", default=None)


def check_each_statement(engine: Engine) -> None:
    """Refuse the next statement of a caller that no longer waits."""

    @sa.event.listens_for(engine, "before_cursor_execute")
    def check(*_: Any) -> None:
        limit = _LIMIT.get()
        if limit is not None:
            limit.check()


@contextmanager
def limited_read(conn: Connection) -> Iterator[None]:
    """Apply the limit of this context to a reading transaction, or none of a former one.

    The session of PostgreSQL keeps its setting, so that most transactions need no statement for it. Behind a pooler the
    session belongs to other clients as well, so there the setting is that of a transaction.
    """
    limit = _LIMIT.get()
    with _interruptible(conn, limit):
        if conn.dialect.name == "sqlite":
            yield
        elif is_pooled(conn):
            with _transaction(conn, limit):
                yield
        else:
            if conn.info.get(_SESSION) != _milliseconds(limit):
                conn.exec_driver_sql(_set("SET", limit))
                conn.info[_SESSION] = _milliseconds(limit)
            yield


@contextmanager
def limited_write(conn: Connection) -> Iterator[None]:
    """Apply the limit of this context to a writing transaction, or none of a former read."""
    limit = _LIMIT.get()
    if conn.dialect.name != "sqlite" and conn.info.get(_SESSION) != _milliseconds(limit):
        conn.exec_driver_sql(_set("SET LOCAL", limit))
    with _interruptible(conn, limit):
        yield


@contextmanager
def _interruptible(conn: Connection, limit: TimeLimit | None) -> Iterator[None]:
    if limit is None or conn.dialect.name != "sqlite":
        yield
        return
    with limit.running(conn.connection.dbapi_connection):
        yield


@contextmanager
def _transaction(conn: Connection, limit: TimeLimit | None) -> Iterator[None]:
    """Begin a transaction with a limit on a connection that otherwise commits each statement."""
    if limit is None:
        yield
        return
    conn.exec_driver_sql(f"BEGIN; {_set('SET LOCAL', limit)}")
    try:
        yield
    finally:
        driver = conn.connection.dbapi_connection
        if driver is not None and not conn.invalidated:
            driver.rollback()


def _set(how: str, limit: TimeLimit | None) -> str:
    return f"{how} statement_timeout TO {_milliseconds(limit) or 'DEFAULT'}"


def _milliseconds(limit: TimeLimit | None) -> int | None:
    return None if limit is None else limit.statement_ms
