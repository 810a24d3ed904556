"""Ranks of a run: start of the program, and evidence of why it ended."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import sys
from typing import Any

from ..file_access import overwrite, read_json, read_text, write_json
from ..files.layout import RunFolder
from ..limits import LOG_SEARCH
from ..machine.executable import why_not_executed
from ..machine.processes import die_with_parent
from ..names import Json
from .cgroup import Cgroup
from .rank_environment import runs_library, too_large

#: Runs the module that follows as ``python -m`` does, but without the current folder in front of Python's own.
RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), None, '__main__', True)"
)


class Rank:
    """One rank of this host."""

    def __init__(self, plan: Json, folder: RunFolder, launcher: Rank | None = None) -> None:
        self.plan = plan
        #: The rank whose process starts this one; None: the supervisor starts it.
        self.launcher = launcher
        self.number: int = plan["rank"]
        self.folder = folder.file(f"rank{self.number}")
        self.pid = 0
        self.start_time = 0
        self.exit_code: int | None = None
        self.signalled = False
        #: Bytes freed in the middle of the log, [start, end).
        self.gap: list[int] | None = None

    def note_gap(self, start: int, end: int) -> None:
        """Record a gap of the log before its bytes are freed, so that readers recognize the hole."""
        path = os.path.join(self.folder, "gaps.json")
        document = {"gaps": [[start, end]]}
        try:
            write_json(path, document, durable=False)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # The log has filled the disk. The gaps file was allocated its block when the run was prepared.
            overwrite(path, json.dumps(document, separators=(",", ":")).encode())
        self.gap = [start, end]

    @property
    def running(self) -> bool:
        """Return whether the process was started and has not been reaped."""
        return self.pid > 0 and self.exit_code is None

    def record(self) -> Json:
        """Return the rank's record in state.json."""
        return {"rank": self.number, "pid": self.pid, "start_time": self.start_time, "exit_code": self.exit_code}


def rank_argv(plan: Json, image_python: str | None = None) -> list[str]:
    """Return the command of a rank. ``python`` becomes the interpreter of the image or the plan, or else this one."""
    argv = list(plan["argv"])
    if argv[0] in ("python", "python3"):
        argv[0] = os.path.expanduser(image_python or plan["python"] or sys.executable)
    if runs_library(argv):
        # The program adds the user's code behind Python's own modules, which a file named like one would replace.
        argv[1:2] = ["-c", RUN_MODULE]
    return argv


def become_rank(
    argv: list[str],
    env: dict[str, str],
    folder: RunFolder,
    rank: Rank,
    parent: int,
    cgroup: Cgroup | None,
    log: int,
    locks: list[int],
) -> None:
    """Turn a freshly forked child into a rank. Returns only by raising.

    The order matters: the cgroup before any fork, the parent-death signal before the check of the
    parent, the descriptors last because earlier steps may still need one.
    """
    enter_rank(folder, parent, cgroup, log)
    keep_descriptors(locks)
    execute(rank, argv, env)


def enter_rank(folder: RunFolder, parent: int, cgroup: Cgroup | None, log: int) -> None:
    """Give a freshly forked child the place, the signals and the streams of a rank."""
    signal.set_wakeup_fd(-1)
    if cgroup is not None and not cgroup.is_inside():
        cgroup.enter()
    os.setsid()
    for number_ in range(1, signal.NSIG):
        if number_ not in (signal.SIGKILL, signal.SIGSTOP):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number_, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    os.umask(0o077)
    os.chdir(folder.file("work"))
    os.dup2(log, 1)
    os.dup2(log, 2)


def keep_descriptors(locks: list[int]) -> None:
    """Close all descriptors but the standard streams and some locks.

    Locks get the first free numbers, as after any start.
    """
    # Move them to high ones first, so that none is overwritten.
    away = [fcntl.fcntl(lock, fcntl.F_DUPFD, 64) for lock in locks]
    for number_, lock in enumerate(away, 3):
        os.dup2(lock, number_, inheritable=True)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 + len(away):
            with contextlib.suppress(OSError):
                os.close(int(name))


def execute(rank: Rank, argv: list[str], env: dict[str, str]) -> None:
    """Execute the program of a rank. Never returns."""
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - without a shell on purpose
    except OSError as error:
        if error.errno == errno.E2BIG:
            error.strerror = too_large(argv, env)
        report_cannot_start(rank, argv[0], error)
        os._exit(126 if error.errno == errno.EACCES else 127)


def report_cannot_start(rank: Rank, program: str, error: BaseException) -> None:
    """Write the reason to the log and to the error file that the supervisor reads."""
    reason = why_not_executed(program, error) if isinstance(error, OSError) else str(error)
    message = f"cannot execute {program!r}: {reason}"
    with contextlib.suppress(OSError):
        os.write(2, message.encode() + b"\n")
    with contextlib.suppress(OSError):
        write_json(os.path.join(rank.folder, "error.json"), {"message": message}, durable=False)


def tail_of(path: str, length: int) -> bytes:
    """Return the last bytes of a file, b"" if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, length, max(0, os.fstat(fd).st_size - length))
    except OSError:
        return b""
    finally:
        os.close(fd)


def error_of(folder: str, exit_code: int) -> Json | None:
    """Return the error of a rank: its error file, else the traceback in its log, else its last lines."""
    if exit_code == 0:
        return None
    from_file = parse_error_file(read_json(os.path.join(folder, "error.json")))
    if from_file is not None:
        return from_file
    log = tail_of(os.path.join(folder, "log"), LOG_SEARCH).decode("utf-8", "replace")
    last = "\n".join(log.rstrip().splitlines()[-20:])
    if exit_code < 0:
        return {"message": f"killed by {signal_name(-exit_code)}", "traceback": last}
    found = find_traceback(log)
    if found is not None:
        return found
    last_line = last.splitlines()[-1] if last else "its log is empty"
    return {"message": f"exit code {exit_code}: {last_line[:1000]}", "traceback": last}


def has_error(folder: str) -> bool:
    """Return whether a rank has written its error file."""
    return parse_error_file(read_json(os.path.join(folder, "error.json"))) is not None


def parse_error_file(document: Json | None) -> Json | None:
    """Return message and traceback of a TORCHELASTIC_ERROR_FILE or of our library's error file."""
    inner = (document or {}).get("message")
    extra: Any = document
    if isinstance(inner, dict):
        extra = inner.get("extraInfo")
        inner = inner.get("message")
    if not isinstance(inner, str) or not inner:
        return None
    trace = (extra.get("traceback") or extra.get("py_callstack")) if isinstance(extra, dict) else None
    return {"message": inner[-(8 << 10) :], "traceback": trace[-(64 << 10) :] if isinstance(trace, str) else ""}


def find_traceback(log: str) -> Json | None:
    """Return the last Python traceback in a log, with its chained exceptions."""
    # PyTorch puts the rank before each line once the process groups exist.
    log = re.sub(r"(?m)^\[rank\d+\]: ?", "", log)
    mark = "Traceback (most recent call last):"
    start = log.rfind(mark)
    if start < 0:
        return None
    block = log[start:].splitlines()
    end = next((i for i, line in enumerate(block[1:], 1) if line and not line[0].isspace()), len(block) - 1)
    message = block[end]
    chained = ("another exception occurred:", "direct cause of the following exception:")
    while log[:start].rstrip().endswith(chained) and (before := log.rfind(mark, 0, start)) >= 0:
        start = before
    return {"message": message[: 8 << 10], "traceback": log[start:].rstrip()[-(16 << 10) :]}


def oom_kills() -> int:
    """Return the number of processes that the kernel has killed since boot because memory ran out."""
    found = re.search(r"^oom_kill (\d+)$", read_text("/proc/vmstat") or "", re.MULTILINE)
    return int(found[1]) if found else 0


def oom_cause(kills: int) -> str:
    """Return the probable sender of a SIGKILL that the supervisor did not send.

    :param kills: number of processes that the kernel killed for lack of memory since the ranks were started
    """
    if kills > 0:
        return f"the kernel was out of memory and ended {kills} process(es) during this run"
    return "not sent by dtrain; a container's memory limit or another program did it"


def signal_name(number_: int) -> str:
    """Return the number and name of a signal, for messages."""
    with contextlib.suppress(ValueError):
        return f"signal {number_} ({signal.Signals(number_).name})"
    return f"signal {number_}"
