"""Ways for bytes to the first node of a job: TCP from here, TCP through SSH, and a relay that Slurm starts."""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_dtrain.errors import HostUnreachableError
from airflow_provider_dtrain.hosts.transport.base import Channel, Transport
from airflow_provider_dtrain.hosts.transport.ssh import SSHTransport
from airflow_provider_dtrain.hosts.wire import NOISE_LIMIT_BYTES, shown
from airflow_provider_dtrain.supervisor.serve.relay import MARK

_RECEIVE_BYTES = 256 * 1024


class ByteStream(Protocol):
    """Two-way stream of bytes. Thread-safe for one reader and one writer. A :class:`.Channel` is one."""

    def send(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        """Send all of ``data``.

        :raises HostUnreachableError: the stream is closed, or sending took longer than ``timeout_s``
        """

    def receive(self, *, timeout_s: float) -> bytes | None:
        """Return the next bytes, ``b""`` at the end, or None on a time-out."""

    def close(self) -> None:
        """Close the stream and wake its users. Repeatable, never raises."""


@dataclass(frozen=True)
class Route:
    """One way to the first node, which may not be there yet.

    :raises HostUnreachableError: (``open``) nothing answers there before the deadline
    """

    #: Kind of the way: ``tcp``, ``ssh`` or ``relay``. The one that worked is worth trying first for the next job.
    kind: str
    #: Way in words, for messages.
    name: str
    #: Opens a stream until a deadline, a reading of the monotonic clock.
    open: Callable[[float], ByteStream] = field(repr=False)


def tcp_routes(address: str, ports: Iterable[int]) -> list[Route]:
    """Return the routes from this machine, for a cluster that this machine belongs to."""

    def route(port: int) -> Route:
        return Route("tcp", f"{address}:{port}", lambda deadline: TcpStream.connect(address, port, deadline))

    return [route(port) for port in ports]


def ssh_routes(login: SSHTransport, address: str, ports: Iterable[int]) -> list[Route]:
    """Return the routes through the SSH connection to a login node, without a process there.

    :param login: stays open, and belongs to the caller
    """

    def route(port: int) -> Route:
        return Route(
            "ssh",
            f"{address}:{port} through {login.host}",
            lambda deadline: login.open_tcp(address, port, timeout_s=_left_s(deadline)),
        )

    return [route(port) for port in ports]


def relay_route(login: Transport, argv: Sequence[str]) -> Route:
    """Return the route through a relay on the first node.

    :param login: transport to a login node; stays open, and belongs to the caller
    :param argv: ``srun --jobid ... --overlap ...`` with the command of :func:`.relay_argv`
    """

    def open_relay(deadline: float) -> ByteStream:
        return _behind_mark(login.host, login.open(argv, timeout_s=_left_s(deadline)), deadline)

    return Route("relay", f"a relay through {login.host}", open_relay)


def _left_s(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _behind_mark(host: str, channel: Channel, deadline: float) -> ByteStream:
    """Return the bytes behind the mark of the relay."""
    received = bytearray()
    try:
        while MARK not in received:
            chunk = channel.receive(timeout_s=_left_s(deadline)) if time.monotonic() < deadline else None
            if not chunk or len(received) > NOISE_LIMIT_BYTES:
                how = "ended" if chunk == b"" else "sent no greeting"
                message = shown(channel.errors().strip()[-300:]) or shown(received)
                raise HostUnreachableError(host, f"The relay through '{host}' {how}: {message}")
            received += chunk
    except BaseException:
        channel.close()
        raise
    return _RelayStream(host, channel, bytes(received.split(MARK, 1)[1]))


class _RelayStream:
    """Bytes of a relay, whose output are lines of base64."""

    def __init__(self, host: str, channel: Channel, received: bytes) -> None:
        self.send, self.close = channel.send, channel.close
        self._host, self._channel = host, channel
        self._received = bytearray(received)

    def receive(self, *, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        while not (content := self._decoded()):
            chunk = self._channel.receive(timeout_s=max(0.0, deadline - time.monotonic()))
            if not chunk:
                return chunk
            self._received += chunk
        return content

    def _decoded(self) -> bytes:
        """Return the content of the complete lines."""
        end = self._received.rfind(b"\n") + 1
        if not end and len(self._received) > NOISE_LIMIT_BYTES:
            raise HostUnreachableError(self._host, f"The relay through '{self._host}' sent a line without an end.")
        lines = bytes(self._received[:end]).split()
        del self._received[:end]
        try:
            return b"".join(base64.b64decode(line, validate=True) for line in lines)
        except ValueError as error:
            raise HostUnreachableError(
                self._host, f"The relay through '{self._host}' sent something else: '{shown(b' '.join(lines))}'."
            ) from error


class TcpStream:
    """TCP connection."""

    def __init__(self, address: str, sock: socket.socket) -> None:
        # The sender and the reader have different deadlines, so each one waits in poll.
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._address, self._sock = address, sock
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._is_closed = False

    @classmethod
    def connect(cls, address: str, port: int, deadline: float) -> TcpStream:
        """Return a connection.

        :raises HostUnreachableError: nothing answers before the deadline
        """
        try:
            sock = socket.create_connection((address, port), timeout=_left_s(deadline))
        except OSError as error:
            raise HostUnreachableError(address, f"{address}:{port} cannot be reached: {error}.") from error
        return cls(f"{address}:{port}", sock)

    def send(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        """Send all of ``data``."""
        deadline = time.monotonic() + timeout_s
        view = memoryview(data)
        with self._writing:
            try:
                while view:
                    self._wait(select.POLLOUT, deadline)
                    with contextlib.suppress(BlockingIOError):
                        view = view[self._sock.send(view) :]
            except OSError as error:
                raise HostUnreachableError(self._address, f"{self._address} accepts no bytes: {error}.") from error

    def receive(self, *, timeout_s: float) -> bytes | None:
        """Return the next bytes."""
        with self._reading:
            try:
                self._wait(select.POLLIN, time.monotonic() + timeout_s)
                return self._sock.recv(_RECEIVE_BYTES)
            except (BlockingIOError, TimeoutError):
                return None
            except OSError:
                return b""

    def _wait(self, event: int, deadline: float) -> None:
        if self._is_closed:
            raise OSError("the connection is closed")
        ready = select.poll()
        ready.register(self._sock, event)
        if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError("nothing happened before the deadline")

    def close(self) -> None:
        """Close the connection."""
        # This wakes threads that read or write.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._reading, self._writing:
            self._is_closed = True
            self._sock.close()

    def abandon(self) -> None:
        """Close the descriptor in a forked child without a message to the other side."""
        self._sock.close()
