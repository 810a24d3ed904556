"""A program that imports PyTorch once and forks the ranks of each request, so that a test does not wait for imports.

It reads one JSON array per line: for each rank its script, folder, environment and file for the output. It answers with
the process ids, and with the exit codes once all ranks have ended.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Variables that PyTorch reads when it is imported, and their usual values. Other values need a program of their own.
#: The last one names further modules to import.
AT_IMPORT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DTRAIN_TEST_IMPORTS": ""}


@dataclass(frozen=True)
class Order:
    """A rank to start."""

    script: str
    folder: str
    environment: dict[str, str]
    output: str


class WarmRanks:
    """A program, started with the first request and stopped with this process.

    :param at_import: values of :data:`AT_IMPORT`, in its order
    """

    def __init__(self, *at_import: str) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm_ranks"],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **dict(zip(AT_IMPORT, at_import, strict=True))},
        )
        atexit.register(self._program.kill)

    def run(self, orders: Sequence[Order], timeout_s: float) -> list[int]:
        """Run ranks to their end and return their exit codes. Ranks that outlast the time-out are killed."""
        assert self._program.stdin
        assert self._program.stdout
        self._program.stdin.write(json.dumps([asdict(order) for order in orders]) + "\n")
        self._program.stdin.flush()
        pids = json.loads(self._program.stdout.readline())
        if not select.select([self._program.stdout], [], [], timeout_s)[0]:
            for pid in pids:
                os.killpg(pid, signal.SIGKILL)
        return list(json.loads(self._program.stdout.readline()))


@functools.cache
def warm_ranks(*at_import: str) -> WarmRanks:
    """Return this process's program with these values of :data:`AT_IMPORT`."""
    return WarmRanks(*at_import)


def _next_order() -> Order | None:
    """Serve requests. Return None at their end, and in a forked rank the order for it."""
    for line in sys.stdin:
        pids = []
        for document in json.loads(line):
            pid = os.fork()
            if pid == 0:
                return Order(**document)
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)
    return None


def _become(order: Order) -> None:
    """Give this process the session, files, environment and folder of a rank."""
    os.setsid()
    # A test run that dies takes this process along.
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
    output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for fd, opened in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(opened, fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    sys.argv = [order.script]
    sys.path[0] = str(Path(order.script).parent)


if __name__ == "__main__":
    # The first optimizer of a process imports torch._dynamo, which takes as long as torch itself.
    import torch._dynamo  # noqa: F401
    import torch.utils.data  # noqa: F401

    for module in os.environ["DTRAIN_TEST_IMPORTS"].split():
        importlib.import_module(module)
    found = _next_order()
    if found is not None:
        _become(found)
        # As a program of its own: exit handlers run, and an exception ends it with its traceback and status 1.
        runpy.run_path(found.script, run_name="__main__")
