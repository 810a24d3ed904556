"""Transport to the machine that Airflow itself runs on."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.errors import HostError, HostUnreachableError
from airflow_provider_dtrain.hosts.transport.base import Channel, Completed
from airflow_provider_dtrain.hosts.transport.run_command import STDERR_LIMIT_BYTES, complete, not_in_children
from airflow_provider_dtrain.supervisor.machine.host_environment import passed

_CHUNK_BYTES = 256 * 1024
# A command that floods standard error must not keep its reader from standard output.
_DRAIN_CHUNKS = 16
#: A command whose channel was closed reads the end of its input. It is killed after this many seconds.
_LINGER_S = 10.0


class LocalTransport:
    """Transport that runs commands as child processes of this process.

    Each command runs in a session of its own, so that a signal to an Airflow worker's process group does
    not reach it. Of this process's environment it gets what describes account and machine, so that Airflow's
    configuration, including credentials, does not reach it.

    :param host: name under which this machine is registered
    :param home: folder in which commands start; default: the account's home directory
    :param env: further variables
    """

    def __init__(self, host: str = "local", *, home: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        self.host = host
        self._home = home or Path.home()
        self._env = {**_base_environment(self._home), **(env or {})}
        self._channels: list[LocalChannel] = []
        self._lock = threading.Lock()

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        """Run a command to its end. After ``timeout_s`` it is killed."""
        process = self._start(argv)
        if isinstance(process, EndedChannel):
            return Completed(exit_code=process.exit_code(), stdout=b"", stderr=process.errors())
        pipe = LocalChannel(self.host, process)
        try:
            return complete(self.host, pipe, stdin=stdin, timeout_s=timeout_s)
        except HostError:
            pipe.kill()
            raise
        finally:
            pipe.close()

    def open(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Channel:
        """Start a command and return its channel."""
        process = self._start(argv)
        if isinstance(process, EndedChannel):
            return process
        channel = LocalChannel(self.host, process)
        with self._lock:
            self._channels = [*(one for one in self._channels if not one.closed), channel]
        return channel

    def close(self) -> None:
        """Close every channel. Repeatable, never raises."""
        with self._lock:
            channels = self._channels
            self._channels = []
        for channel in channels:
            channel.close()

    def _start(self, argv: Sequence[str]) -> _Process | EndedChannel:
        if not self._home.is_dir():
            raise HostUnreachableError(
                self.host, f"Host '{self.host}' has no home folder {self._home}. Create it, or set HOME."
            )
        try:
            return _Process(argv, cwd=self._home, env=self._env)
        except FileNotFoundError as error:
            return EndedChannel(127, f"{argv[0]}: {error.strerror}\n".encode())
        except PermissionError as error:
            return EndedChannel(126, f"{argv[0]}: {error.strerror}\n".encode())
        except OSError as error:
            raise HostUnreachableError(
                self.host,
                f"Host '{self.host}' cannot start a process: {error}. Check the limits of processes and memory.",
            ) from error


class LocalKind:
    """The machine of this process, which has neither a connection nor a host key."""

    def transport(self, host: str, connection: Any, host_key: str | None) -> LocalTransport:
        """Return a transport to this machine."""
        return LocalTransport(host)

    def host_keys(self, connection: Any) -> None:
        """Return None: no other machine can answer."""


KIND = LocalKind()


def _base_environment(home: Path) -> dict[str, str]:
    user = getpass.getuser()
    path = os.pathsep.join(os.get_exec_path())
    own = {"PATH": path, "HOME": str(home), "USER": user, "LOGNAME": user, "TMPDIR": tempfile.gettempdir()}
    return {"LANG": "C.UTF-8", **passed(os.environ), **own}


class _Process:
    """Child process and this process's ends of its three streams.

    The streams are socket pairs, since a socket can be shut down while another thread waits on it.
    """

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        pairs = [socket.socketpair() for _ in range(3)]
        self.stdin, self.stdout, self.stderr = (ours for ours, _ in pairs)
        try:
            stdin, stdout, stderr = (theirs for _, theirs in pairs)
            self.popen = subprocess.Popen(
                list(argv),
                stdin=stdin.fileno(),
                stdout=stdout.fileno(),
                stderr=stderr.fileno(),
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        except BaseException:
            self.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        for ours in (self.stdin, self.stdout, self.stderr):
            ours.setblocking(False)

    def close(self) -> None:
        for ours in (self.stdin, self.stdout, self.stderr):
            ours.close()


class LocalChannel:
    """Streams of one child process."""

    def __init__(self, host: str, process: _Process) -> None:
        self._host = host
        self._process = process
        self._popen = process.popen
        self._errors = bytearray()
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self.closed = False
        not_in_children(self)

    def send(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        """Write all of ``data`` to the command's standard input."""
        deadline = time.monotonic() + timeout_s
        with self._writing:
            try:
                if self.closed:
                    raise BrokenPipeError("the channel is closed")
                self._write(memoryview(data), deadline)
            except OSError as error:
                raise HostUnreachableError(
                    self._host, f"A command on host '{self._host}' does not accept further input: {error}."
                ) from error

    def _write(self, view: memoryview, deadline: float) -> None:
        writable = select.poll()
        writable.register(self._process.stdin, select.POLLOUT)
        while view:
            if not writable.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError("it read nothing until the deadline")
            with contextlib.suppress(BlockingIOError):
                view = view[self._process.stdin.send(view) :]

    def receive(self, *, timeout_s: float) -> bytes | None:
        """Return the next bytes of standard output, ``b""`` at the end, or None on a time-out."""
        deadline = time.monotonic() + timeout_s
        with self._reading:
            if self.closed:
                return b""
            readable = select.poll()
            streams = {one.fileno(): one for one in (self._process.stdout, self._process.stderr)}
            for fd in streams:
                readable.register(fd, select.POLLIN)
            while True:
                ready = [streams[fd] for fd, _ in readable.poll(max(0.0, deadline - time.monotonic()) * 1000)]
                if self._process.stderr in ready and self._drain_errors():
                    readable.unregister(self._process.stderr)
                if self._process.stdout in ready:
                    return _read(self._process.stdout)
                if time.monotonic() >= deadline:
                    return None

    def _drain_errors(self) -> bool:
        """Store the available standard error, and return whether it has ended."""
        for _ in range(_DRAIN_CHUNKS):
            chunk = _read(self._process.stderr)
            if not chunk:
                return chunk is not None
            self._errors += chunk
            del self._errors[:-STDERR_LIMIT_BYTES]
        return False

    def errors(self) -> bytes:
        """Return the command's standard error so far, at most the last 64 KiB."""
        with self._reading:
            if not self.closed:
                self._drain_errors()
            return bytes(self._errors)

    def exit_code(self) -> int | None:
        """Return the exit status once the command has ended, else None."""
        return self._popen.poll()

    def wait_exit(self, timeout_s: float) -> int | None:
        """Return the exit status, or None if the command has not ended in time."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def finish_input(self) -> None:
        """Close the command's standard input. Never raises."""
        with contextlib.suppress(OSError):
            self._process.stdin.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill the command's whole session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the streams. A command that does not end by itself is killed after ``_LINGER_S``."""
        for ours in (self._process.stdin, self._process.stdout):
            # This wakes threads that read from or write to the channel.
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
        with self._reading, self._writing:
            if self.closed:
                return
            self._drain_errors()
            self.closed = True
            self._process.close()
        if self._popen.poll() is None:
            threading.Thread(target=self._reap, name=f"dtrain-reap-{self._popen.pid}", daemon=True).start()

    def _reap(self) -> None:
        if self.wait_exit(_LINGER_S) is None:
            self._popen.kill()
            self._popen.wait()

    def abandon(self) -> None:
        """Close the descriptors in a forked child without a message to the command."""
        self._process.close()


def _read(stream: socket.socket) -> bytes | None:
    """Return the available bytes, ``b""`` at the end, or None if none are available."""
    try:
        return stream.recv(_CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class EndedChannel:
    """Channel of a command that could not be started."""

    def __init__(self, exit_code: int, errors: bytes) -> None:
        self._exit_code = exit_code
        self._errors = errors

    def send(self, data: bytes, *, timeout_s: float = 30.0) -> None:
        """Drop ``data``, since no command reads it."""

    def receive(self, *, timeout_s: float) -> bytes | None:
        """Return the end of the output."""
        return b""

    def errors(self) -> bytes:
        """Return the reason why the command was not started."""
        return self._errors

    def exit_code(self) -> int:
        """Return the exit status of a shell in this case: 127 not found, 126 not executable."""
        return self._exit_code

    def finish_input(self) -> None:
        """Do nothing."""

    def wait_exit(self, timeout_s: float) -> int:
        """Return the exit status."""
        return self._exit_code

    def close(self) -> None:
        """Do nothing."""
