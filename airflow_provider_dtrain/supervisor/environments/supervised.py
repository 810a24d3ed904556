"""Programs whose processes all end with them, also detached ones, and also if the process above them is killed."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..machine.processes import LIBC, PR_SET_CHILD_SUBREAPER, die_with_parent, kill_descendants, program

#: Time for the process above a program to end what is left of it.
_MARGIN_S = 10.0


class SupervisedProgram:
    """A program under a process of its own, which adopts what the program detaches.

    :param limit_s: time after which it is ended
    :param fds: descriptors that the program gets
    :param options: of ``subprocess.Popen``
    """

    def __init__(self, argv: Sequence[str], limit_s: float, fds: Sequence[int], **options: Any) -> None:
        own = [sys.executable, "-I", program(), "supervise", str(limit_s), ",".join(map(str, fds))]
        self.limit_s = limit_s
        self._begun = time.monotonic()
        self.process = subprocess.Popen(
            [*own, *argv], stdin=subprocess.PIPE, start_new_session=True, pass_fds=fds, **options
        )

    def wait(self) -> int | None:
        """Return the exit status, above 128 for a signal, None if the time has passed. No process is left."""
        process = self.process
        assert process.stdin is not None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.limit_s + _MARGIN_S)
        finally:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_MARGIN_S)
            process.kill()
            process.wait()
        is_late = process.returncode != 0 and time.monotonic() - self._begun >= self.limit_s
        return None if is_late else process.returncode


def supervise(argv: Sequence[str], limit_s: float, fds: Sequence[int]) -> int:
    """Run a program, and return its exit status once none of its processes is left.

    The end of standard input ends it: the process above has ended, or no longer waits.
    """
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    deadline = time.monotonic() + limit_s
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent, pass_fds=fds
    ) as process:
        try:
            while (status := process.poll()) is None and time.monotonic() < deadline:
                if select.select([0], [], [], 0.01)[0]:
                    break
        finally:
            kill_descendants()
    return 1 if status is None else status if status >= 0 else 128 - status
