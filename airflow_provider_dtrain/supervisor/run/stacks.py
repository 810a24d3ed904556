"""Python stacks of running ranks, which the ranks write themselves on a signal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable

from ..fields import Fields, number
from ..files.layout import RunFolder, process_records
from ..limits import STACK_BYTES, STACK_WAIT_S, STACKS_BYTES
from ..machine.processes import Proc, is_dead, read_proc, send_signal, signals_in
from ..names import Json
from ..refusal import Refused

#: Signal on which a rank writes its stacks. The training library has the same number. Few programs use a real-time one.
STACK_SIGNAL = signal.SIGRTMAX - 7
#: File below a rank's folder that the training library opens.
STACK_FILE = "stacks"
#: Time without a further byte after which a rank has written all of its stacks.
_QUIET_S = 0.1
_STATES = {
    "D": "it waits in the kernel and takes no signal (state D)",
    "T": "it is stopped by a signal (state T): continue it with kill -CONT",
    "t": "a debugger has stopped it (state t)",
}


def stacks_request(folder: RunFolder, fields: Fields) -> Callable[[], Json]:
    """Check a request, and return the work of a thread."""
    numbers = fields.items("ranks", limit=4096) if "ranks" in fields.values else None
    if not all(type(one) is int for one in numbers or ()):
        raise fields.bad("ranks", "must be whole numbers")
    return lambda: stacks(folder, numbers)


def running_rank(folder: RunFolder, rank: int) -> Proc | None:
    """Return the process of a rank that runs here, None without one."""
    return next((_running(one) for one in process_records(folder) if number(one.get("rank")) == rank), None)


def stacks(folder: RunFolder, numbers: list[int] | None) -> Json:
    """Return the Python stacks of a run's ranks on this host.

    :param numbers: only these ranks; None = all
    :return: ``ranks``: number, pid, state of the process, text of the stacks, and the reason if there is none
    :raises Refused: ``not_running``, no rank of the run runs here
    """
    records = [one for one in process_records(folder) if number(one.get("rank")) >= 0]
    found = [Stack(folder, one) for one in records if numbers is None or one["rank"] in numbers]
    if not any(one.proc for one in found):
        raise Refused("not_running", f"Run {folder.name} has no such running rank on this host.")
    deadline = time.monotonic() + STACK_WAIT_S
    for one in found:
        one.request()
    # Together they must fit into one line of the protocol.
    most = min(STACK_BYTES, STACKS_BYTES // len(found))
    return {"ranks": [one.result(deadline, most) for one in found]}


class Stack:
    """The stacks of one rank.

    :param record: the rank's record in state.json
    """

    def __init__(self, folder: RunFolder, record: Json) -> None:
        self.record = record
        self.path = folder.file(f"rank{record['rank']}", STACK_FILE)
        self.proc = _running(record)
        self.problem = "" if self.proc is not None else "it does not run"
        self.fd = -1

    def request(self, wait_s: float = STACK_WAIT_S) -> None:
        """Send the signal, if the rank expects it.

        :param wait_s: most seconds for the end of an earlier request
        """
        if self.proc is None:
            return
        if not self._open() or STACK_SIGNAL not in signals_in(self.proc.pid, "SigCgt"):
            self.problem = "its program has not joined the training library"
            return
        if not self._lock(wait_s):
            self.problem = "another request for its stacks is in progress"
            return
        # Emptied, so that requests do not fill the disk. The rank appends.
        os.ftruncate(self.fd, 0)
        send_signal(self.proc, STACK_SIGNAL)

    def result(self, deadline: float, most: int, quiet_s: float = _QUIET_S) -> Json:
        """Return the rank's stacks, or the reason why there are none.

        :param quiet_s: seconds without a further byte after which they are complete
        """
        text = ""
        if self.proc is not None and not self.problem:
            text = self._read(deadline, most, quiet_s)
            if not text:
                state = getattr(read_proc(self.proc.pid), "state", "X")
                self.problem = _STATES.get(
                    state, f"it did not write its stacks within {STACK_WAIT_S:g} s (state {state})"
                )
        if self.fd >= 0:
            os.close(self.fd)
        proc = None if self.proc is None else read_proc(self.proc.pid)
        return {
            "rank": self.record["rank"],
            "pid": self.record["pid"],
            "state": "" if proc is None else proc.state,
            "text": text,
            "problem": self.problem,
        }

    def _open(self) -> bool:
        """Open the rank's file, which its program may have replaced by anything."""
        try:
            self.fd = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        return stat.S_ISREG(os.fstat(self.fd).st_mode)

    def _lock(self, wait_s: float) -> bool:
        """Wait for an earlier request, which ends within seconds. Return False if it does not."""
        until = time.monotonic() + wait_s
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)

    def _read(self, deadline: float, most: int, quiet_s: float) -> str:
        """Return the content of the file once it is complete, cut to ``most`` bytes, or "" after the deadline."""
        size, since = 0, time.monotonic()
        while True:
            now = time.monotonic()
            found = os.fstat(self.fd).st_size
            if found != size:
                size, since = found, now
            is_quiet = size > 0 and now - since > quiet_s
            if is_quiet or size > most or now > deadline:
                break
            time.sleep(0.01)
        data = os.pread(self.fd, most, 0)
        text = data.decode("utf-8", "replace")
        return text + "\n... (cut)" if size > most else text


def _running(record: Json) -> Proc | None:
    pid = record.get("pid")
    proc = read_proc(pid) if isinstance(pid, int) and pid > 0 and record.get("exit_code") is None else None
    return proc if proc is not None and proc.start_time == record.get("start_time") and not is_dead(proc) else None
