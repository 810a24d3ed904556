"""Reception of PostgreSQL notifications on a connection of its own, see ``database.notifications``."""

from __future__ import annotations

import logging
import secrets
import select
import socket
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_provider_dtrain.errors import StoreUnavailableError
from airflow_provider_dtrain.store.database.connections import gate
from airflow_provider_dtrain.store.database.notifications import CHANNEL, PoolChange, message, parsed

log = logging.getLogger(__name__)

#: Longest wait for a test message to this connection.
ECHO_S = 5.0


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
            other.execute(sa.select(message("echo", word)))
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

    def messages(self, wake: socket.socket, timeout_s: float) -> list[PoolChange]:
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
        return [found for payload in payloads if (found := parsed(payload, self._schema)) is not None]

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
