"""A program that imports Airflow once and forks a process for each command."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Process:
    """A forked process and its own child.

    :param pid: of the forked process
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def child(self) -> int:
        """Process id of the child, 0 without one."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        with contextlib.suppress(OSError, IndexError):
            return int(path.read_text().split()[0])
        return 0

    def signal(self, number: int, *, parent: bool = True, child: bool = True) -> None:
        """Send a signal to the processes that live."""
        for pid in [self.child] * child + [self.pid] * parent:
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, number)


class Forker:
    """Starts processes of one kind.

    :param module: calls :func:`serve` as a program
    :param out: file for the output of every process
    :param environment: more variables
    """

    def __init__(self, module: str, out: Path, environment: dict[str, str]) -> None:
        self.out = out
        self.program = subprocess.Popen(
            [sys.executable, "-m", module], cwd=ROOT, env={**os.environ, **environment}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out.open("ab"),
        )  # fmt: skip
        assert self._answer() == "ready", out.read_text()[-3000:]
        self.started: list[Process] = []

    def fork(self, *command: Any) -> int:
        """Start a process and return its id."""
        assert self.program.stdin
        self.program.stdin.write(json.dumps(command) + "\n")
        self.program.stdin.flush()
        pid = int(self._answer())
        self.started.append(Process(pid))
        return pid

    def _answer(self) -> str:
        assert self.program.stdout
        return self.program.stdout.readline().strip()

    def kill(self) -> None:
        """End the processes that were started so far."""
        for process in self.started:
            process.signal(signal.SIGKILL)
        self.started.clear()

    def close(self) -> None:
        """End every process."""
        self.kill()
        assert self.program.stdin
        self.program.stdin.close()
        self.program.wait(60)


def serve(run: Callable[..., object]) -> None:
    """Fork a process for each command on standard input, which calls ``run`` with the command's values."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A test run that dies takes this process along.
            ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            try:
                run(*command)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        print(pid, flush=True)
