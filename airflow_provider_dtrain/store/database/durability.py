"""Durability of commits and bounds of transactions: settings of each connection, set when it is opened."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from airflow_provider_dtrain.errors import StoreError

#: SQLite: pragma, value to set, and value that it then reads. FULL: a commit is on disk before it is reported.
PRAGMAS = (("journal_mode", "WAL", "wal"), ("synchronous", "FULL", 2), ("foreign_keys", "ON", 1))
#: Longest wait for other processes that have a new store open.
CHANGE_WAIT_S = 30.0
#: PostgreSQL: a commit is on disk, at a synchronous standby too. ``remote_apply`` guarantees more and stays as it is.
DURABLE = ("on", "remote_apply")
SET_DURABLE = "SET synchronous_commit TO on"
#: PostgreSQL ends a transaction that waits this long for its client: a stopped process must not keep the pool locked.
IDLE_MOST_S = 30
_WAYS_OUT = {
    "journal_mode": (
        "A file system without local locks or shared memory refuses it. Move the store to a local disk, or use "
        "PostgreSQL in [dtrain] sql_alchemy_conn."
    ),
    "synchronous": "Without it a power failure undoes reported grants. Check the build options of this SQLite.",
    "foreign_keys": "This SQLite was built without foreign keys. Use Python's own build of SQLite.",
}


def configure_sqlite(connection: sqlite3.Connection, file: str) -> None:
    """Set the pragmas that the store relies on, and verify each of them.

    SQLite silently ignores a pragma that it cannot apply.

    :param file: the database, for the message
    :raises StoreError: SQLite refused a setting
    """
    for name, value, expected in PRAGMAS:
        if _pragma(connection, name) == expected:
            continue
        _set(connection, f"PRAGMA {name}={value}")
        if (found := _pragma(connection, name)) != expected:
            raise StoreError(
                f"The SQLite store {file} needs PRAGMA {name}={value}, but SQLite keeps {found!r}. {_WAYS_OUT[name]}"
            )


def _set(connection: sqlite3.Connection, pragma: str) -> None:
    """Execute a pragma, with retries while the database is locked.

    The change to WAL fails at once while another process opens the same new store.
    """
    give_up_at = time.monotonic() + CHANGE_WAIT_S
    while True:
        try:
            connection.execute(pragma)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def configure_psycopg(connection: Any) -> None:
    """Make each commit of a PostgreSQL session wait for the disk, and bound the pauses of its transactions.

    :param connection: of psycopg, outside any transaction
    :raises StoreError: the server keeps another setting
    """
    # Not through a cursor, which would begin a transaction.
    connection.pgconn.exec_(f"SET idle_in_transaction_session_timeout TO '{IDLE_MOST_S} s'".encode())
    if _shown(connection) != "remote_apply":
        connection.pgconn.exec_(SET_DURABLE.encode())
    if (found := _shown(connection)) not in DURABLE:
        raise StoreError(
            f"The PostgreSQL store needs synchronous_commit 'on' or 'remote_apply', but the server keeps {found!r} "
            f"after {SET_DURABLE!r}. A crash of the server would undo grants. See: airflow dtrain db check"
        )


def local_settings() -> str:
    """Return the statements that give one transaction of PostgreSQL these settings.

    Behind a pooler a session's setting belongs to a server process that other clients use as well.
    """
    return f"SET LOCAL synchronous_commit TO on; SET LOCAL idle_in_transaction_session_timeout TO '{IDLE_MOST_S} s'"


def _shown(connection: Any) -> str:
    answer = connection.pgconn.exec_(b"SHOW synchronous_commit")
    value = answer.get_value(0, 0) if answer.ntuples else None
    return value.decode() if value is not None else "nothing"
