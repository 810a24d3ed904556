"""PostgreSQL notifications for waiters: a pool has changed, a gang was granted.

A message is sent by the transaction that makes the change, so a rollback sends none. It only says what to query:
a lost message, for instance behind pgbouncer, costs time and nothing else.
"""

from __future__ import annotations

import logging
import secrets
import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_dtrain.errors import StoreUnavailableError
from airflow_provider_dtrain.store.database.connections import gate

log = logging.getLogger(__name__)

CHANNEL = "dtrain"
#: Most bytes of ids in one message; PostgreSQL accepts 8,000 bytes.
MESSAGE_BYTES = 7000
#: Longest wait for a test message to this connection.
ECHO_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Message:
    """A change that another transaction made to a pool."""

    pool: str
    #: Allocations that were granted; empty: any change that may affect the next decision.
    granted: frozenset[int] = frozenset()


def granted_messages(pool: str, allocation_ids: Sequence[int]) -> list[dict[str, str]]:
    """Return the parameters of :data:`TELL` that notify the waiters for these allocations."""
    return [{"message": f" granted {pool} {words}"} for words in _pieces([str(one) for one in allocation_ids])]


#: Sends ``message`` when the transaction commits.
TELL = sa.select(
    sa.func.pg_notify(CHANNEL, sa.func.concat(sa.func.current_schema(), sa.bindparam("message", type_=sa.Text)))
)


#: RETURNING clause for an UPDATE of a pool's version, so that the notification costs no statement of its own.
POOL_CHANGED: sa.ColumnElement[Any] = sa.func.pg_notify(
    CHANNEL, sa.func.concat(sa.func.current_schema(), " changed ", sa.bindparam("pool_name", type_=sa.Text))
)


def _message(kind: str, words: str) -> sa.ColumnElement[Any]:
    # Stores may share a database. Each has its own schema, but channels belong to the whole database.
    return sa.func.pg_notify(CHANNEL, sa.func.concat(sa.func.current_schema(), f" {kind} {words}"))


def _pieces(ids: Sequence[str]) -> Iterator[str]:
    most = MESSAGE_BYTES // 20
    for start in range(0, len(ids), most):
        yield ",".join(ids[start : start + most])


def parsed(payload: str, schema: str) -> Message | None:
    """Return the parsed message, None when it is of another store or of an unknown kind."""
    home, _, rest = payload.partition(" ")
    match rest.split(" "):
        case ["changed", pool]:
            return Message(pool=pool) if home == schema else None
        case ["granted", pool, ids] if home == schema and all(one.isdigit() for one in ids.split(",")):
            return Message(pool=pool, granted=frozenset(map(int, ids.split(","))))
    return None


class Listener:
    """A listening connection of a process, for use by one thread.

    :raises StoreUnavailableError: the database cannot be reached, or messages do not arrive through the connection
    """

    def __init__(self, engine: Engine) -> None:
        self._connection: Any = None
        self._kept: list[str] = []
        try:
            # Detached from the pool, because a transaction on it would delay messages.
            pooled = engine.raw_connection()
            self._connection = pooled.driver_connection
            pooled.detach()
            self._connection.autocommit = True
            self._connection.execute(f"LISTEN {CHANNEL}")
            self._schema = str(self._connection.execute("SELECT current_schema()").fetchone()[0])
            self._check_echo(engine)
        except StoreUnavailableError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise StoreUnavailableError(f"LISTEN on the store failed: {error}.") from error

    def _check_echo(self, engine: Engine) -> None:
        """Check that a message of another connection arrives, which fails behind a pooler that shares connections."""
        word = secrets.token_hex(8)
        deadline = time.monotonic() + ECHO_S
        with gate.transaction(), engine.begin() as other:
            other.execute(sa.select(_message("echo", word)))
        while time.monotonic() < deadline:
            self._wait(None, deadline - time.monotonic())
            arrived = self._arrived()
            self._kept += arrived
            if any(payload.endswith(f" echo {word}") for payload in arrived):
                return
        raise StoreUnavailableError(
            f"A test notification did not arrive within {ECHO_S:.0f} s: a pooler in front of PostgreSQL probably "
            "shares connections (pgbouncer in transaction mode?). The store is polled instead."
        )

    def messages(self, wake: socket.socket, timeout_s: float) -> list[Message]:
        """Return received messages, as soon as there is one, ``wake`` is readable, or the time is over.

        :raises StoreUnavailableError: the connection was lost
        """
        try:
            if not self._kept:
                self._wait(wake, timeout_s)
            payloads = self._kept + self._arrived()
            self._kept = []
        except Exception as error:
            raise StoreUnavailableError(f"Notifications from the store failed: {error}.") from error
        return [message for payload in payloads if (message := parsed(payload, self._schema)) is not None]

    def _wait(self, wake: socket.socket | None, timeout_s: float) -> None:
        poll = select.poll()
        for descriptor in (self._connection.fileno(), *(() if wake is None else (wake.fileno(),))):
            poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, timeout_s) * 1000)

    def _arrived(self) -> list[str]:
        raw = self._connection.pgconn
        raw.consume_input()
        found = []
        while (notice := raw.notifies()) is not None:
            found.append(notice.extra.decode("utf-8", errors="replace"))
        return found

    def close(self) -> None:
        """Close the connection. Repeatable, never raises."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            try:
                connection.close()
            except Exception as error:
                log.debug("The listening connection did not close: %s", error)


def can_listen(engine: Engine) -> bool:
    """Return whether the database sends notifications through a driver that this code supports."""
    return engine.dialect.name == "postgresql" and engine.dialect.driver == "psycopg"
