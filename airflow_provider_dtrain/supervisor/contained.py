"""First process of a container: starts ranks there as the supervisor outside requests, and reports their ends.

It is the only process of this program that runs in a container, with the Python of the image. It runs no code of a user
itself. When it ends, the kernel ends all processes of the container's pid namespace. It ends when the supervisor does.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from .checks.interpreters import find_modules
from .fields import parse_object
from .files.layout import Layout, RunFolder, worker_of
from .machine.processes import LIBC, PR_SET_CHILD_SUBREAPER, Proc, all_procs, descendants, read_proc, send_signal
from .machine.sockets import receive_message
from .names import CONTAINER_SOCKET, Json
from .run.rank_exec import EXEC_SOCKET, run_in_container
from .run.ranks import Rank, become_rank, report_cannot_start


def main() -> None:
    """Connect to the supervisor and serve it until it is gone."""
    os.umask(0o077)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN, which programs would inherit.
        signal.signal(number, lambda *_: None)
    state_dir, run = sys.argv[1:3]
    FirstProcess(Layout(".", state_dir, "none").run(run)).serve()


class FirstProcess:
    """First process of the container of a run on this host."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        #: Pid here -> number of the rank.
        self.ranks: dict[int, int] = {}
        # A path in the file system of sockets has at most 107 bytes, so the names are relative.
        os.chdir(folder.path)
        self.listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(EXEC_SOCKET)
        self.listener.bind(EXEC_SOCKET)
        self.listener.listen(16)
        self.supervisor = socket.socket(socket.AF_UNIX)
        self.supervisor.connect(CONTAINER_SOCKET)

    def serve(self) -> None:
        """Serve the supervisor until it closes its end of the socket."""
        wakeup, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller = select.poll()
        for fd in (wakeup, self.supervisor.fileno(), self.listener.fileno()):
            poller.register(fd, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == wakeup:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wakeup, 4096)
                elif fd == self.listener.fileno():
                    self._run_command()
                elif not self._obey():
                    end_all()
            self._reap()

    def _obey(self) -> bool:
        """Carry out the next request of the supervisor. Return False once the supervisor is gone."""
        body, fds = receive_message(self.supervisor)
        request = parse_object(body or b"")
        if request is None:
            return False
        if "modules" in request:
            # The locks of the slots stay open here, so that the slots stay taken while the container lives.
            self._report(**self._hello(request))
        else:
            self._start(request, fds)
            for fd in fds:
                os.close(fd)
        return True

    def _hello(self, request: Json) -> Json:
        environment = dict(os.environ)
        if not os.access(environment.get("HOME", ""), os.W_OK):
            environment["HOME"] = self.folder.file("home")
        try:
            getpass.getuser()
        except (KeyError, OSError):
            environment["USER"] = environment["LOGNAME"] = "dtrain"
        os.environ["PYTHONPATH"] = f"{request['path']}:{environment.get('PYTHONPATH', '')}"
        found, problems = find_modules(request["modules"], self.folder.path)
        return {"hello": found, "problems": problems, "environment": environment}

    def _report(self, **message: Any) -> None:
        with contextlib.suppress(OSError):
            self.supervisor.sendall(json.dumps(message).encode() + b"\n")

    def _start(self, request: Json, fds: list[int]) -> None:
        rank = Rank(request, self.folder)
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            report_cannot_start(rank, request["argv"][0], error)
            self._report(exited=rank.number, status=126 << 8)
            return
        if pid == 0:
            try:
                # The kernel adds the pid of this process as the supervisor sees it.
                self._report(started=rank.number)
                become_rank(request["argv"], request["env"], self.folder, rank, parent, None, fds[0], fds[1:])
            except BaseException as error:
                report_cannot_start(rank, request["argv"][0], error)
            finally:
                os._exit(127)
        self.ranks[pid] = rank.number

    def _run_command(self) -> None:
        """Run a command beside a rank, under a process of its own that ends what the command started."""
        connection, _ = self.listener.accept()
        body, fds = receive_message(connection)
        request = parse_object(body or b"")
        if request is not None and len(fds) >= 3 and os.fork() == 0:
            try:
                signal.set_wakeup_fd(-1)
                self.supervisor.close()
                run_in_container(self._process_of(request["rank"]), request, fds)
            finally:
                os._exit(0)
        connection.close()
        for fd in fds:
            os.close(fd)

    def _process_of(self, rank: int) -> Proc | None:
        """Return the process of a rank, which a launcher may have started."""
        worker = worker_of(self.folder, rank)
        proc = None if worker is None else read_proc(worker["pid"])
        if worker is not None and proc is not None and proc.start_time == worker["start_time"]:
            return proc
        return next((read_proc(pid) for pid, number in self.ranks.items() if number == rank), None)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                number = self.ranks.pop(found[0], None)
                if number is not None:
                    self._report(exited=number, status=found[1])


def end_all() -> None:
    """End all processes of the container and this one. Never returns."""
    while os.getpid() != 1:
        # Without a pid namespace of its own, the kernel does not do it.
        left = descendants([os.getpid()], all_procs())
        for proc in left:
            send_signal(proc, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        if not left:
            break
    os._exit(0)
