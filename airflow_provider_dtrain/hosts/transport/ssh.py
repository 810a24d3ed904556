"""SSH transport to a host, through paramiko and Airflow's SSHHook.

Each process has one client per host, which carries all commands on a few channels. It never requests agent or X11
forwarding.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.errors import HostUnreachableError
from airflow_provider_dtrain.hosts.transport.base import Channel, Completed, HostKey
from airflow_provider_dtrain.hosts.transport.host_keys import ignored_settings
from airflow_provider_dtrain.hosts.transport.run_command import STDERR_LIMIT_BYTES, complete, not_in_children
from airflow_provider_dtrain.hosts.transport.ssh_connect import connect, fetch_host_key, hook_from_connection
from airflow_provider_dtrain.hosts.wire import plain

if TYPE_CHECKING:
    import paramiko
    from airflow.providers.ssh.hooks.ssh import SSHHook

__all__ = ["KIND", "SSHTransport", "fetch_host_key", "hook_from_connection"]

#: sshd's MaxSessions is 10 by default, and sshd counts a session for a while after its end.
MAX_CHANNELS = 6
_CHUNK_BYTES = 64 * 1024
_RECEIVE_BYTES = 256 * 1024


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Return False for paramiko's error about a port that is closed: its caller gets an exception as well."""
    return "open FAILED" not in str(record.msg)


class SSHTransport:
    """Transport that runs commands on a host over SSH.

    :param host: name under which the host is registered
    :param hook: makes the hook when a connection is needed; the thread that needs it calls this
    :param host_key: ``TYPE BASE64`` that the host must present, unless the connection has a key of its own
    :param connect_timeout_s: maximum time for connecting, in seconds, even if the operation has more time left
    :param max_channels: maximum number of concurrent commands; further commands wait for one to end
    """

    def __init__(
        self,
        host: str,
        hook: Callable[[], SSHHook],
        *,
        host_key: str | None = None,
        connect_timeout_s: float = 30.0,
        max_channels: int = MAX_CHANNELS,
    ) -> None:
        self.host = host
        self._make_hook = hook
        self._host_key = host_key
        self._connect_timeout_s = connect_timeout_s
        self._max_channels = max_channels
        self._slots = threading.BoundedSemaphore(max_channels)
        self._connecting = threading.Lock()
        self._client: paramiko.SSHClient | None = None
        self._closed = False
        not_in_children(self)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        """Run a command to its end.

        A command that takes longer than ``timeout_s`` keeps running on the host, since sshd does not end it.
        """
        started_s = time.monotonic()
        pipe = self._open(argv, timeout_s)
        left_s = max(0.1, timeout_s - (time.monotonic() - started_s))
        try:
            return complete(self.host, pipe, stdin=stdin, timeout_s=left_s)
        finally:
            pipe.close()

    def open(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Channel:
        """Start a command and return its channel."""
        return self._open(argv, timeout_s)

    def open_tcp(self, address: str, port: int, *, timeout_s: float = 30.0) -> Channel:
        """Return a TCP connection that the host opens to another address. It counts as no command.

        :raises HostUnreachableError: the host does not forward, or nothing answers there within ``timeout_s``
        """
        import paramiko

        logging.getLogger("paramiko.transport").addFilter(_is_no_refusal)
        deadline = time.monotonic() + timeout_s
        reconnected = False
        while True:
            client = self._connected(deadline)
            try:
                transport = client.get_transport()
                if transport is None:
                    raise EOFError("closed")
                left_s = max(0.1, deadline - time.monotonic())
                channel = transport.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=left_s)
                return SSHChannel(self.host, channel, lambda: None)
            except (paramiko.SSHException, EOFError, OSError) as error:
                if _active(client) or reconnected or self._closed or time.monotonic() > deadline:
                    raise HostUnreachableError(
                        self.host,
                        f"Host '{self.host}' opened no connection to {address}:{port}: {plain(error, 300)}. Check that "
                        "a program listens there, and AllowTcpForwarding and PermitOpen in the host's sshd_config.",
                    ) from error
                client.close()
                reconnected = True

    def close(self) -> None:
        """Close the connection. Repeatable, never raises. Commands in progress fail."""
        self._closed = True
        client = self._client
        self._client = None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    def abandon(self) -> None:
        """Close the descriptor in a forked child without a message to the host."""
        transport = self._client.get_transport() if self._client is not None else None
        if transport is not None and isinstance(transport.sock, socket.socket):
            transport.sock.close()

    def _open(self, argv: Sequence[str], timeout_s: float) -> SSHChannel:
        deadline = time.monotonic() + timeout_s
        if not self._slots.acquire(timeout=timeout_s):
            raise HostUnreachableError(
                self.host,
                f"All {self._max_channels} channels to host '{self.host}' were in use for {timeout_s:g} s. "
                "Its commands hang, or too many transfers run at the same time.",
            )
        try:
            channel = self._session(deadline)
            self._exec(channel, shlex.join(argv), deadline)
        except BaseException:
            self._slots.release()
            raise
        return SSHChannel(self.host, channel, self._slots.release)

    def _connected(self, deadline: float) -> paramiko.SSHClient:
        if not self._connecting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise HostUnreachableError(
                self.host, f"Host '{self.host}' is not connected yet: connecting takes too long in another thread."
            )
        try:
            client = self._client
            if not self._closed and (client is None or not _active(client)):
                limit = min(deadline, time.monotonic() + self._connect_timeout_s)
                self._client = client = connect(self.host, self._make_hook, self._host_key, limit)
            if self._closed or client is None:
                self.close()
                raise HostUnreachableError(self.host, f"The connection to host '{self.host}' was closed on this side.")
            return client
        finally:
            self._connecting.release()

    def _session(self, deadline: float) -> paramiko.Channel:
        """Return a new channel, and reconnect once if the connection is dead."""
        import paramiko

        pause_s = 0.05
        reconnected = False
        while True:
            client = self._connected(deadline)
            try:
                transport = client.get_transport()
                if transport is None:
                    raise EOFError("closed")
                return transport.open_session(timeout=max(0.1, deadline - time.monotonic()))
            except (paramiko.SSHException, EOFError, OSError) as error:
                if _active(client) and "Timeout" not in str(error):
                    # sshd refused the session: it still counts sessions that have ended on this side. paramiko mixes
                    # up the errors of threads that are refused together, so the error's type does not identify this.
                    if time.monotonic() + pause_s > deadline:
                        raise self._no_session(error) from error
                    time.sleep(pause_s)
                    pause_s = min(1.0, 2 * pause_s)
                    continue
                client.close()
                if reconnected or self._closed or time.monotonic() > deadline:
                    raise self._cut(error) from error
                reconnected = True

    def _exec(self, channel: paramiko.Channel, command: str, deadline: float) -> None:
        """Start a command under a timer, since paramiko waits for the host's answer without a limit."""
        import paramiko

        with _closing_at(deadline, channel):
            try:
                channel.exec_command(command)
            except (paramiko.SSHException, EOFError, OSError) as error:
                channel.close()
                raise self._cut(error) from error

    def _cut(self, error: Exception) -> HostUnreachableError:
        message = plain(error, 300) or type(error).__name__
        return HostUnreachableError(
            self.host,
            f"The SSH connection to host '{self.host}' broke or stalled: {message} Check the network and the host.",
        )

    def _no_session(self, error: Exception) -> HostUnreachableError:
        return HostUnreachableError(
            self.host,
            f"sshd on host '{self.host}' refuses further sessions on this connection ({plain(error, 300)}). Its "
            f"MaxSessions is 10 by default, this process needs up to {self._max_channels}. Raise it to at least that.",
        )


class SSHHostKeys:
    """Key of the SSH server behind a connection."""

    def __init__(self, connection: Any) -> None:
        self._hook = hook_from_connection(connection)
        self._conn_id = str(connection.conn_id)
        self.address = f"{self._hook.remote_host}:{self._hook.port}"

    def is_known(self) -> bool:
        """Return whether the connection or ``known_hosts`` has the key."""
        if self._hook.host_key is not None:
            return True
        import paramiko

        host, port = self._hook.remote_host, int(self._hook.port or 22)
        with contextlib.suppress(OSError, paramiko.SSHException):
            known = paramiko.HostKeys(str(Path("~/.ssh/known_hosts").expanduser()))
            return known.lookup(host if port == 22 else f"[{host}]:{port}") is not None
        return False

    def fetch(self, timeout_s: float) -> HostKey:
        """Return the key that the server presents, without logging in."""
        return fetch_host_key(self._hook, timeout_s)

    def warning(self) -> str | None:
        """Return a warning if the connection disables the check of host keys."""
        return ignored_settings(self._conn_id, self._hook)


class SSHKind:
    """Hosts behind connections of type ``ssh``."""

    def transport(self, host: str, connection: Any, host_key: str | None) -> SSHTransport:
        """Return a transport over SSH."""
        return SSHTransport(host, lambda: hook_from_connection(connection), host_key=host_key)

    def host_keys(self, connection: Any) -> SSHHostKeys:
        """Return the key of the server."""
        return SSHHostKeys(connection)


KIND = SSHKind()


def _active(client: paramiko.SSHClient) -> bool:
    transport = client.get_transport()
    return transport is not None and transport.is_active()


@contextlib.contextmanager
def _closing_at(deadline: float, channel: paramiko.Channel) -> Iterator[None]:
    timer = threading.Timer(max(0.1, deadline - time.monotonic()), channel.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class SSHChannel:
    """Streams of one command over SSH."""

    def __init__(self, host: str, channel: paramiko.Channel, on_close: Callable[[], None]) -> None:
        self._host = host
        self._channel = channel
        self._on_close = on_close
        self._errors = bytearray()
        self._closing = threading.Lock()
        # paramiko has one time limit for both directions of a channel. The sender uses it. The reader waits for this
        # event instead, which both output streams set.
        self._readable = threading.Event()
        channel.in_stderr_buffer.set_event(self._readable)
        channel.in_buffer.set_event(self._readable)

    def send(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        """Write all of ``data`` to the command's standard input."""
        deadline = time.monotonic() + timeout_s
        view = memoryview(data)
        try:
            while view:
                if (left_s := deadline - time.monotonic()) <= 0.0:
                    raise TimeoutError
                self._channel.settimeout(left_s)
                view = view[self._channel.send(bytes(view[:_CHUNK_BYTES])) :]
        except (OSError, EOFError) as error:
            is_late = isinstance(error, TimeoutError)
            reason = "it did not read everything before the deadline" if is_late else str(error)
            raise HostUnreachableError(
                self._host, f"A command on host '{self._host}' does not accept further input: {reason}."
            ) from error

    def receive(self, *, timeout_s: float) -> bytes | None:
        """Return the next bytes of standard output, ``b""`` at the end, or None on a time-out."""
        deadline = time.monotonic() + timeout_s
        # Reading one stream clears the event for both, so check each stream after reading the other.
        self._drain_errors()
        while not self._channel.recv_ready():
            if self._channel.closed or self._channel.eof_received:
                self._drain_errors()
                # Bytes may have arrived between the two checks.
                return self._channel.recv(_RECEIVE_BYTES)
            if not self._readable.wait(max(0.0, deadline - time.monotonic())):
                return None
            self._drain_errors()
        return self._channel.recv(_RECEIVE_BYTES)

    def _drain_errors(self) -> None:
        # Standard error shares the channel's window: if it is not read, it blocks standard output.
        while self._channel.recv_stderr_ready():
            self._errors += self._channel.recv_stderr(_RECEIVE_BYTES)
            del self._errors[:-STDERR_LIMIT_BYTES]

    def errors(self) -> bytes:
        """Return the command's standard error so far, at most the last 64 KiB."""
        self._drain_errors()
        return bytes(self._errors)

    def exit_code(self) -> int | None:
        """Return the exit status, -1 for an unknown signal, None while the command runs or if it never arrived."""
        return None if not self._channel.exit_status_ready() else self._status()

    def _status(self) -> int | None:
        status = self._channel.exit_status
        transport = self._channel.get_transport()
        # paramiko reports -1 both if a signal ended the command and if the connection was cut.
        return status if status >= 0 or (transport is not None and transport.is_active()) else None

    def wait_exit(self, timeout_s: float) -> int | None:
        """Return the exit status, or None if the command has not ended in time."""
        if not self._channel.status_event.wait(timeout_s):
            return None
        status = self._status()
        if status is None:
            raise HostUnreachableError(
                self._host,
                f"The connection to host '{self._host}' was cut while a command ran. Its exit status is unknown.",
            )
        return status

    def finish_input(self) -> None:
        """Close the command's standard input. Never raises."""
        with contextlib.suppress(Exception):
            self._channel.shutdown_write()

    def close(self) -> None:
        """Close the channel. Repeatable, never raises."""
        if not self._closing.acquire(blocking=False):
            return
        with contextlib.suppress(Exception):
            self._channel.close()
        self._on_close()
