"""Message server of a gang without PyTorch: a thread of rank 0 that all ranks are connected to.

A message is a JSON header and bytes. Nothing is unpickled, so a stranger on the network can disturb a gang but cannot
run code in it. The gang's run name in the first message keeps ranks of another gang out.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.errors import LostRankError
from airflow_provider_dtrain.train.process.rendezvous import BACKLOG, listener

#: Lengths of a header and of the bytes behind it.
_LENGTHS = struct.Struct(">IQ")
HEADER_LIMIT_BYTES = 1 << 20
#: Most bytes of one rank in one exchange. Larger contents are sent in pieces.
PAYLOAD_LIMIT_BYTES = 65 << 20


def send(connection: socket.socket, header: Mapping[str, Any], payload: bytes = b"") -> None:
    """Send one message."""
    text = json.dumps(header).encode()
    connection.sendall(_LENGTHS.pack(len(text), len(payload)) + text)
    if payload:
        connection.sendall(payload)


def receive(connection: socket.socket, limit_bytes: int = PAYLOAD_LIMIT_BYTES) -> tuple[dict[str, Any], bytes]:
    """Return the next message.

    :param limit_bytes: most bytes behind the header
    :raises LostRankError: the connection ended
    :raises ValueError: the message is none of this protocol, or too large
    """
    length, size = _LENGTHS.unpack(exactly(connection, _LENGTHS.size))
    if length > HEADER_LIMIT_BYTES or size > limit_bytes:
        raise ValueError(f"a message of {length} and {size} bytes is not of this protocol")
    header = json.loads(exactly(connection, length))
    if not isinstance(header, dict):
        raise ValueError("the header of a message must be a JSON object")
    return header, exactly(connection, size)


def exactly(connection: socket.socket, count: int) -> bytes:
    """Return this many bytes.

    :raises LostRankError: the connection ended before
    """
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise LostRankError("the connection was closed")
        parts += part
    return bytes(parts)


class MessageServer:
    """Keys that ranks set and wait for, counters, and exchanges that end when every rank has taken part.

    :param size: number of ranks
    :param run: name that every rank must present
    """

    def __init__(self, host: str, port: int, *, size: int, run: str, timeout_s: float) -> None:
        self._size = size
        self._run = run
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}
        #: name -> rank -> bytes, and the ranks that have the answer already
        self._exchanges: dict[str, dict[int, bytes]] = {}
        self._answered: dict[str, int] = {}
        self._lost: str | None = None
        self._left: set[int] = set()
        self._joined: set[int] = set()
        self._socket = _listen(host, port)
        threading.Thread(target=self._accept, name="dtrain-messages", daemon=True).start()

    def close(self, patience_s: float = 5.0) -> None:
        """Wait until the other ranks have left, at most some seconds, and close the server."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._left) == len(self._joined), patience_s)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        rank = -1
        try:
            with connection:
                connection.settimeout(self._timeout_s)
                hello, _ = receive(connection, 0)
                rank = self._join(hello)
                send(connection, {"ok": True})
                connection.settimeout(None)
                while True:
                    header, payload = receive(connection)
                    if header["op"] == "leave":
                        self._leave(rank)
                        return
                    self._answer(connection, rank, header, payload)
        except (LostRankError, OSError, ValueError, KeyError, TypeError) as error:
            if rank >= 0:
                self._lose(rank, error)

    def _join(self, hello: Mapping[str, Any]) -> int:
        rank = hello.get("rank")
        with self._changed:
            fits = hello.get("run") == self._run and hello.get("size") == self._size
            if not fits or not isinstance(rank, int) or not 0 <= rank < self._size or rank in self._joined:
                raise ValueError("this is no rank of the gang")
            self._joined.add(rank)
        return rank

    def _leave(self, rank: int) -> None:
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def _lose(self, rank: int, error: Exception) -> None:
        with self._changed:
            self._lost = self._lost or f"rank {rank} has left the gang: {error}"
            self._left.add(rank)
            self._changed.notify_all()

    def _answer(self, connection: socket.socket, rank: int, header: Mapping[str, Any], payload: bytes) -> None:
        try:
            answer, parts = self._do(rank, header, payload)
        except (LostRankError, TimeoutError) as error:
            answer, parts = {"error": str(error)}, []
        send(connection, {**answer, "sizes": [len(part) for part in parts]})
        for part in parts:
            connection.sendall(part)

    def _do(self, rank: int, header: Mapping[str, Any], payload: bytes) -> tuple[dict[str, Any], list[bytes]]:
        op, key = str(header["op"]), str(header["key"])
        with self._changed:
            if op == "exchange":
                return {}, self._exchange(key, rank, payload, header.get("to"))
            if op in {"get", "take"}:
                timeout_s = float(header["timeout_s"])
                self._wait(lambda: key in self._values, timeout_s, f"no rank has set {key}")
                return {}, [self._values.pop(key) if op == "take" else self._values[key]]
            if op == "add":
                self._counts[key] = self._counts.get(key, 0) + int(header["amount"])
                return {"count": self._counts[key]}, []
            if op == "set" or (op == "first" and key not in self._values):
                self._values[key] = payload
            self._changed.notify_all()
            return {}, [self._values[key]] if op == "first" else []

    def _exchange(self, key: str, rank: int, payload: bytes, to: int | None) -> list[bytes]:
        """Return the bytes of all ranks, in order of rank, once all have sent theirs.

        :param to: the only rank that needs them
        """
        parts = self._exchanges.setdefault(key, {})
        parts[rank] = payload
        self._changed.notify_all()
        self._wait(lambda: len(parts) == self._size, self._timeout_s, f"not every rank has entered exchange {key}")
        self._answered[key] = self._answered.get(key, 0) + 1
        if self._answered[key] == self._size:
            del self._exchanges[key], self._answered[key]
        return [parts[each] for each in range(self._size)] if to in (None, rank) else []

    def _wait(self, is_done: Any, timeout_s: float, message: str) -> None:
        self._changed.wait_for(lambda: is_done() or self._lost is not None, timeout_s)
        if is_done():
            return
        if self._lost is not None:
            raise LostRankError(self._lost)
        raise TimeoutError(f"{message} within {timeout_s:g} s")


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the address of the rendezvous only."""
    found = listener(host, port)
    if found is not None:
        return found
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    server = socket.socket(family, kind, protocol)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen(BACKLOG)
    except OSError:
        server.close()
        raise
    return server


def rendezvous_address() -> tuple[str, int]:
    """Return the host and port that rank 0 listens on.

    :raises KeyError: MASTER_ADDR or MASTER_PORT is missing
    :raises ValueError: the port is no number
    """
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connect(host: str, port: int, *, rank: int, size: int, run: str, timeout_s: float) -> socket.socket:
    """Return a connection to the message server, which may start later than this rank.

    :raises OSError: the server did not answer within the time limit
    :raises LostRankError: it ended the connection
    """
    until = time.monotonic() + timeout_s
    pause_s = 0.01
    while True:
        connection = None
        try:
            connection = socket.create_connection((host, port), timeout=max(0.1, until - time.monotonic()))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send(connection, {"run": run, "rank": rank, "size": size})
            receive(connection, 0)
            connection.settimeout(None)
            return connection
        except (LostRankError, OSError):
            with contextlib.suppress(OSError, AttributeError):
                connection.close()  # type: ignore[union-attr]
            if time.monotonic() > until:
                raise
        time.sleep(pause_s)
        pause_s = min(1.0, 2 * pause_s)
