"""A program that imports PyTorch once and forks the ranks of each request, so that a test does not wait for imports.

It reads one JSON object per line: for each rank its script, folder, environment and file for the output. It answers
with the process ids, and with the exit codes once all ranks have ended. On request it kills the others when a rank
fails, as a supervisor does.
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

from tests.support.only_torch import hide_other_packages

ROOT = Path(__file__).parents[2]
#: Variables that PyTorch reads when it is imported, and their usual values. Other values need a program of their own.
#: Of those for tests, one names further modules to import, and one, if set, hides all packages but PyTorch.
AT_IMPORT = {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "DTRAIN_TEST_IMPORTS": "",
    "DTRAIN_TEST_ONLY_TORCH": "",
}


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
        pids = self.begin(orders)
        if not self.has_ended(timeout_s):
            for pid in pids:
                os.killpg(pid, signal.SIGKILL)
        return self.codes()

    def begin(self, orders: Sequence[Order], *, together: bool = False) -> list[int]:
        """Start ranks and return their process ids. :meth:`codes` must be called before the next ranks.

        :param together: when a rank fails, kill the others
        """
        assert self._program.stdin
        assert self._program.stdout
        request = {"orders": [asdict(order) for order in orders], "together": together}
        self._program.stdin.write(json.dumps(request) + "\n")
        self._program.stdin.flush()
        return list(json.loads(self._program.stdout.readline()))

    def has_ended(self, timeout_s: float) -> bool:
        """Wait, and return whether all ranks have ended."""
        return bool(select.select([self._program.stdout], [], [], timeout_s)[0])

    def codes(self) -> list[int]:
        """Return the exit codes of the ranks, once all have ended."""
        assert self._program.stdout
        return list(json.loads(self._program.stdout.readline()))

    def cpu_s(self) -> float:
        """Return the CPU seconds of all ranks that have ended."""
        fields = Path(f"/proc/{self._program.pid}/stat").read_bytes().rpartition(b") ")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the program."""
        assert self._program.stdin
        self._program.stdin.close()
        self._program.wait(60)


@functools.cache
def warm_ranks(*at_import: str) -> WarmRanks:
    """Return this process's program with these values of :data:`AT_IMPORT`."""
    return WarmRanks(*at_import)


def run_program(code: str, folder: Path, **environment: str) -> tuple[int, str]:
    """Run a program without a trial in a folder, and return its exit code and what it has printed."""
    script, output = folder / "program.py", folder / "program.log"
    script.write_text(code)
    base = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), **AT_IMPORT}
    order = Order(str(script), str(folder), base | environment, str(output))
    (exit_code,) = warm_ranks(*AT_IMPORT.values()).run([order], 120)
    return exit_code, output.read_text()


def _next_order() -> Order | None:
    """Serve requests. Return None at their end, and in a forked rank the order for it."""
    for line in sys.stdin:
        request = json.loads(line)
        pids = []
        for document in request["orders"]:
            pid = os.fork()
            if pid == 0:
                return Order(**document)
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        print(json.dumps(_codes(pids, together=request["together"])), flush=True)
    return None


def _codes(pids: list[int], *, together: bool) -> list[int]:
    """Return the exit codes of ranks, in their order."""
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
        if together and codes[pid]:
            for other in set(pids) - codes.keys():
                os.kill(other, signal.SIGKILL)
    return [codes[pid] for pid in pids]


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
    if os.environ["DTRAIN_TEST_ONLY_TORCH"]:
        hide_other_packages()
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
