"""Commands in the environment of a running rank, each under a process of its own that ends all of its children."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from ..fields import Fields, parse_object, shorten
from ..file_access import write_all
from ..files.layout import RunFolder
from ..limits import EXEC_BYTES, EXEC_MOST_S, MAX_LINE
from ..machine.locks import lock_holders, take_lock
from ..machine.processes import (
    LIBC,
    PR_SET_CHILD_SUBREAPER,
    Proc,
    all_procs,
    descendants,
    die_with_parent,
    environment_of,
    is_dead,
    program,
    read_proc,
    send_signal,
)
from ..machine.sockets import send_message
from ..names import Json
from ..refusal import Refused
from .stacks import running_rank

#: File of a run's folder, locked by the processes of its commands.
EXEC_LOCK = "exec.lock"
#: Socket of the first process of the run's container, if there is one.
EXEC_SOCKET = "exec.sock"
#: Variables of a rank that the processes it starts do not get either.
_SECRET = "DTRAIN_SECRETS"  # noqa: S105 - the name of a variable
#: Time for the last output of a command that has ended, and for the end of killed processes.
_DRAIN_S, _KILL_S = 0.2, 5.0
#: Time that the process above a command may take in addition to the command.
_MARGIN_S = 15.0


def exec_request(folder: RunFolder, fields: Fields, is_open: Callable[[], bool]) -> Callable[[], Json]:
    """Check a request, and return the work of a thread.

    :param is_open: returns False once the control side is gone, which ends the command
    """
    request = {
        "rank": fields.integer("rank", 0, 1 << 20),
        "argv": fields.texts("argv", least=1, limit=1024, length=32 << 10),
        "limit_s": fields.number("limit_s", 0.1, EXEC_MOST_S),
    }
    return lambda: _supervised(folder, request, is_open)


def _supervised(folder: RunFolder, request: Json, is_open: Callable[[], bool]) -> Json:
    """Return the answer of a single-threaded process that runs the command.

    The end of its input tells it to end the command, so nothing is left if this process is killed.
    """
    argv = [sys.executable, "-I", program(), "exec", folder.name, "--state-dir", folder.layout.state_dir]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = bytearray()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            deadline = time.monotonic() + request["limit_s"] + _MARGIN_S
            while time.monotonic() < deadline:
                if not is_open() and not process.stdin.closed:
                    process.stdin.close()
                if not select.select([process.stdout], [], [], 0.2)[0]:
                    continue
                data = os.read(process.stdout.fileno(), 1 << 20)
                if not data:
                    break
                found += data
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            if process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILL_S)
                process.kill()
    answer = parse_object(bytes(found))
    if answer is None:
        raise Refused("internal", f"The process that runs the command ended with status {process.returncode}.")
    if answer.get("ok") is not True:
        raise Refused(str(answer.get("code")), str(answer.get("message")))
    return answer


def run_request(folder: RunFolder) -> Json:
    """Run the command of a request on standard input, and return exit code and output.

    :raises Refused: ``not_running``, the rank does not run here
    """
    line = sys.stdin.buffer.readline(MAX_LINE)
    request = parse_object(line) or {}
    rank = request["rank"]
    lock = _lock(folder)
    # After the lock: a fence that found no lock has found no rank either.
    proc = running_rank(folder, rank)
    if proc is None:
        raise Refused("not_running", f"Rank {rank} of run {folder.name} does not run on this host.")
    if folder.has(EXEC_SOCKET):
        return _request_in_container(folder, request, lock)
    return _run(proc, request, lock)


def _request_in_container(folder: RunFolder, request: Json, lock: int) -> Json:
    """Let the first process of the run's container run a command. Return the answer of the process above it."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    directory = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    body = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"/proc/self/fd/{directory}/{EXEC_SOCKET}")
        send_message(connection, body, [0, writer, lock])
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = parse_object(file.read())
    return answer or Refused("not_running", f"The container of run {folder.name} has ended.").answer()


def run_in_container(proc: Proc | None, request: Json, fds: list[int]) -> None:
    """Run a command beside a rank of this container, and write its answer.

    :param fds: input, whose end ends the command; output for the answer; the lock of commands of the run
    """
    os.dup2(fds[0], 0)
    answer = (
        Refused("not_running", f"Rank {request['rank']} does not run on this host.").answer()
        if proc is None
        else _run(proc, request, fds[2])
    )
    write_all(fds[1], json.dumps(answer).encode())


def _run(proc: Proc, request: Json, lock: int) -> Json:
    """Run the command of a request beside a rank."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(proc, request["argv"], writer, lock, me)
    os.close(writer)
    return _Watch(pid, reader, proc).run(request["limit_s"])


def _lock(folder: RunFolder) -> int:
    """Return a shared lock that a command and all of its processes hold, so that the fence of the run sees them."""
    fd = os.open(folder.file(EXEC_LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Refused("busy", f"Run {folder.name} is being fenced on this host.") from error
    return fd


def exec_processes(folder: RunFolder) -> list[Proc]:
    """Return the processes of commands beside the ranks of a run. The fence asks, and answers clear without any."""
    path = folder.file(EXEC_LOCK)
    try:
        lock = take_lock(path) if os.path.lexists(path) else None
    except FileNotFoundError:
        return []
    if lock is not None:
        os.close(lock)
        return []
    return lock_holders(path, shared=True)


def _become(proc: Proc, argv: list[str], writer: int, lock: int, parent: int) -> None:
    """Turn a freshly forked child into the command."""
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.set_inheritable(lock, True)
        os.chdir(f"/proc/{proc.pid}/cwd")
        os.execvpe(argv[0], argv, _environment(proc))  # noqa: S606 - without a shell on purpose
    except OSError as error:
        os.write(2, f"cannot execute {shorten(argv[0])}: {error.strerror}\n".encode())
        os._exit(127)
    finally:
        os._exit(126)


def _environment(proc: Proc) -> dict[bytes, bytes]:
    """Return the environment that a rank was started with, without secrets."""
    return {name: value for name, value in environment_of(proc.pid).items() if name != _SECRET.encode()}


class _Watch:
    """The parent of a command: collects its output, and ends it and everything that it started.

    :param reader: end of the pipe that the command writes to
    :param rank: process of the rank, with which the command ends
    """

    def __init__(self, pid: int, reader: int, rank: Proc) -> None:
        self.pid = pid
        self.reader = reader
        self.rank = rank
        self.output = bytearray()
        self.size = 0
        self.status: int | None = None

    def run(self, timeout_s: float) -> Json:
        deadline = time.monotonic() + timeout_s
        is_open, is_late = True, False
        while self.status is None and is_open and not is_late:
            is_open = self._turn() and self._rank_runs()
            is_late = time.monotonic() > deadline
            self._reap()
        is_over = self.status is not None
        until = time.monotonic() + _DRAIN_S
        while is_over and time.monotonic() < until and self._turn():
            pass
        killed = self._kill_all()
        return {
            "ok": True,
            "exit_code": os.waitstatus_to_exitcode(self.status) if self.status is not None and is_over else None,
            "timed_out": is_late and not is_over,
            "output": bytes(self.output).decode("utf-8", "replace"),
            "size_bytes": self.size,
            "killed": killed,
        }

    def _turn(self) -> bool:
        """Read output for a moment. Return False when the control side is gone."""
        ready = select.select([self.reader, 0] if self.reader >= 0 else [0], [], [], 0.02)[0]
        if self.reader in ready:
            data = os.read(self.reader, 1 << 16)
            if not data:
                # All writers are gone, and the command may run on.
                os.close(self.reader)
                self.reader = -1
            self.size += len(data)
            self.output += data[: max(0, EXEC_BYTES - len(self.output))]
        return not (0 in ready and not os.read(0, 1))

    def _rank_runs(self) -> bool:
        now = read_proc(self.rank.pid)
        return now is not None and now.start_time == self.rank.start_time and not is_dead(now)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.pid:
                    self.status = status

    def _kill_all(self) -> int:
        """Kill all descendants, and return the number of those found. Orphans come back to this process."""
        seen: set[tuple[int, int]] = set()
        until = time.monotonic() + _KILL_S
        while time.monotonic() < until:
            left = descendants([os.getpid()], all_procs())
            if not left:
                break
            for proc in left:
                seen.add((proc.pid, proc.start_time))
                send_signal(proc, signal.SIGKILL)
            time.sleep(0.01)
            self._reap()
        return len(seen)
