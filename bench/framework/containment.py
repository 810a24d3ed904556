"""A benchmark in a process of its own. Nothing that it has started outlives it, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from airflow_provider_dtrain.supervisor.machine.processes import LIBC, PR_SET_CHILD_SUBREAPER, kill_descendants

#: Time for a benchmark to stop its servers and hosts after an interrupt.
UNWIND_S = 20.0
POLL_S = 0.05
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts the signals that ask this program to end. While it is active, they end nothing by themselves."""

    def __init__(self) -> None:
        self.count = 0

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    @contextlib.contextmanager
    def noted(self) -> Iterator[Interrupts]:
        """Count signals until the end of the block."""
        before = {number: signal.signal(number, self._note) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose parents end, so that they can be found and ended."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_contained(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path, deadline_s: float, interrupts: Interrupts
) -> str | None:
    """Run a program until its end, and end everything that it has left. This process must adopt orphans.

    An interrupt or the deadline first lets the program unwind. A second interrupt kills it.

    :returns: reason of its failure, None after exit status 0
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    reason: str | None = None
    status: int | None = None
    until = time.monotonic() + deadline_s
    try:
        while (status := _reap(process.pid)) is None:
            late = time.monotonic() > until
            if reason is None and (interrupts.count or late):
                reason = "by a signal" if interrupts.count else f"not complete after {deadline_s:g} s"
                os.kill(process.pid, signal.SIGINT)
                until = time.monotonic() + UNWIND_S
            elif late or interrupts.count > 1:
                break
            time.sleep(POLL_S)
    finally:
        kill_descendants()
        _reap_killed()
        # Popen would wait for it otherwise.
        process.returncode = status or 0
    return reason or (f"exit status {status}" if status else None)


def _reap(pid: int) -> int | None:
    """Wait for all children that have ended. Return the exit status of one of them once it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == pid:
                found = os.waitstatus_to_exitcode(ended[1])
    return found


def _reap_killed() -> None:
    with contextlib.suppress(ChildProcessError):
        until = time.monotonic() + UNWIND_S
        while time.monotonic() < until:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(POLL_S)


def child_command(name: str, result: Path, *, rounds: int, is_quick: bool) -> list[str]:
    """Return the command that runs one benchmark."""
    options = ["--result", str(result), "--rounds", str(rounds), *(["--quick"] if is_quick else [])]
    return [sys.executable, "-m", "bench.framework.child", name, *options]
