"""Start of a run's supervisor, and the reaper that outlives it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import time

from ..fields import parse_object
from ..file_access import write_all, write_json
from ..files.layout import Layout, RunFolder
from ..limits import CONTAINER_END_S, SAMPLER_PATIENCE_S
from ..machine.processes import (
    LIBC,
    PR_SET_CHILD_SUBREAPER,
    all_procs,
    close_all_but,
    descendants,
    has_children,
    identity,
    is_ours,
    is_same,
    send_signal,
    set_name,
)
from ..machine.sockets import receive_message, send_message
from ..names import REAPER_NAME, SUPERVISOR_NAME, Json
from ..refusal import Refused, print_traceback, refusal_of
from .container import end_container
from .forked_program import RankProgram
from .supervisor import Supervisor
from .warm_image import WarmImage
from .warm_start import why_not_handed_over


def launch(layout: Layout, request: bytes) -> int:
    """Fork a detached supervisor. Return the descriptor from which its answer is read.

    The calling process must be single-threaded.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        detach(layout, request, writer)
    os.close(writer)
    os.waitpid(pid, 0)
    return reader


def detach(layout: Layout, request: bytes, report: int) -> None:
    """Detach from session and job with a second fork, and run the reaper there. Never returns.

    A launch whose ranks may be forked from a warm parent is handed over to it.
    """
    try:
        os.setsid()
        if os.fork() == 0 and (reason := why_not_handed_over(layout, request, report)) is not None:
            reap(layout, request, report, why_executed=reason)
    finally:
        os._exit(0)


def reap(layout: Layout, request: bytes, report: int, image: WarmImage | None = None, why_executed: str = "") -> None:
    """Run the reaper: fork a supervisor, wait for its death, then kill every process that it leaves.

    The reaper runs no user code and accepts no command. Orphans of a dead supervisor become its children. It proves
    nothing about a run that another supervisor started, e.g. when its own one was refused or found the run alive.

    :param image: what this process was forked from; None: this program has its own interpreter
    :param why_executed: reason why there is none
    :raises RankProgram: in a rank that was forked
    """
    for number_ in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number_, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    set_name(REAPER_NAME)
    os.chdir("/")
    child = os.fork()
    if child == 0:
        supervise(layout, request, report, image, why_executed)
    supervisor = identity(child)
    close_all_but(-1)
    while os.waitpid(-1, 0)[0] != child:
        pass
    run = (parse_object(request) or {}).get("plan", {}).get("run")
    folder = layout.run(str(run))
    is_own = is_same(supervisor, folder.supervisor() or {})
    # Before its runtime's processes are killed: podman needs seconds to notice that.
    while is_own and end_container(folder) is not None:
        time.sleep(CONTAINER_END_S)
    sweep_orphans()
    if is_own and folder.has("started") and not folder.has("ended"):
        # Without this record, on a full disk, a fence searches all processes.
        with contextlib.suppress(OSError):
            write_json(folder.file("swept"), identity(), durable=False)


def sweep_orphans() -> None:
    """Kill all descendants until no child is left.

    After :data:`SAMPLER_PATIENCE_S`, a sampler stuck in a driver is abandoned.
    """
    begun = time.monotonic()
    pause_s = 0.001
    while has_children():
        procs = descendants([os.getpid()], all_procs())
        for proc in procs:
            send_signal(proc, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() - begun > SAMPLER_PATIENCE_S and all(is_ours(proc.pid) for proc in procs):
            return
        time.sleep(pause_s)
        pause_s = min(0.25, pause_s * 2)


def supervise(layout: Layout, request: bytes, report: int, image: WarmImage | None, why_executed: str) -> None:
    """Run a supervisor: prepare the run, report, and serve it. Only a forked rank leaves it, by RankProgram."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    set_name(SUPERVISOR_NAME)
    os.umask(0o077)
    close_all_but(report)
    supervisor = None
    try:
        # A cleaner may have removed them since the channel began.
        layout.ensure().guard()
        document = json.loads(request)
        supervisor = Supervisor(layout, document["plan"], document["context"], document["secrets"], image, why_executed)
        answer = {"ok": True, **supervisor.prepare()}
        log_errors(supervisor.folder)
    except BaseException as error:
        answer = refusal_of(error).answer()
    with contextlib.suppress(OSError):
        write_all(report, json.dumps(answer).encode())
    os.close(report)
    if answer.get("ok") and supervisor is not None and supervisor.state == "prepared":
        try:
            supervisor.run()
        except RankProgram:
            raise
        except BaseException:
            print_traceback()
    os._exit(0)


def log_errors(folder: RunFolder) -> None:
    """Redirect standard error to the run's folder, for tracebacks of the supervisor."""
    if folder.exists:
        fd = os.open(folder.file("supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(fd, 2)
        os.close(fd)


def read_report(fd: int) -> Json:
    """Wait for a supervisor's answer and return it."""
    with os.fdopen(fd, "rb") as file:
        return parse_report(file.read())


def parse_report(data: bytes) -> Json:
    """Return the answer that a supervisor wrote before it closed the pipe, a refusal if it wrote none."""
    silent = Refused("internal", "The supervisor ended while it prepared the run. Is the host out of memory?")
    return parse_object(data) or silent.answer()


class Zygote:
    """A single-threaded child that forks supervisors for a multi-threaded process."""

    def __init__(self, layout: Layout) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            try:
                self._serve(layout, theirs)
            finally:
                os._exit(0)
        theirs.close()
        self.socket = ours

    def launch(self, request: bytes) -> int:
        """Request a supervisor from the child. Return the descriptor of its answer."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.set_blocking(writer, True)
            send_message(self.socket, request, [writer])
        except OSError as error:
            os.close(reader)
            message = f"The process that starts supervisors is gone: {error}. Connect again."
            raise Refused("internal", message) from error
        finally:
            os.close(writer)
        return reader

    @staticmethod
    def _serve(layout: Layout, sock: socket.socket) -> None:
        close_all_but(sock.fileno())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        gc.freeze()
        while True:
            request, fds = receive_message(sock)
            if request is None or not fds:
                return
            try:
                pid = os.fork()
            except OSError as error:
                refuse_fork(fds[0], error)
                continue
            if pid == 0:
                detach(layout, request, fds[0])
            os.close(fds[0])
            os.waitpid(pid, 0)


def refuse_fork(report: int, error: OSError) -> None:
    """Answer a start for which no process could be forked, and close its pipe."""
    message = f"This host cannot fork the run's supervisor: {error.strerror}. The account is at its limit of processes"
    refused = Refused("os_error", f"{message} (ulimit -u), or memory is short. End processes, or raise the limit.")
    with contextlib.suppress(OSError):
        write_all(report, json.dumps(refused.answer()).encode())
    os.close(report)
