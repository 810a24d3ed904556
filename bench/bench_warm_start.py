"""Start of two ranks over gloo on this machine until their first optimizer step, by the ways to start them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.engine_worlds import World, quiet
from bench.first_step import LAUNCHES_BEFORE, RANKS, SCRIPT, last_step, launch
from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, PEER, Bench, Goal, Row
from testbed.programs import install_programs
from testbed.standalone import free_port

#: Imports all that a first step imports, and forks two ranks for each line that it reads.
FORKS = f"""
import os, sys, torch, torch._dynamo, torch.distributed.tensor
for line in sys.stdin:
    for rank in range({RANKS}):
        if not os.fork():
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), MASTER_PORT=line.strip())
            exec(compile(open("train.py").read(), "train.py", "exec"))
            os._exit(0)
    for rank in range({RANKS}):
        os.wait()
"""
WARM, EXECUTED, DIRECT, TORCHRUN = "ours, warm", "ours, executed", "ranks started directly", "torchrun"
FORKED = "forks of a process that has imported PyTorch"
VARIABLES = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


class Ours:
    """The engine with this machine as its only host."""

    def __init__(self, home: Path) -> None:
        install_programs(home)
        self.world = World(home)
        (home / "code" / "train.py").write_text(SCRIPT)
        self.world.add_this_machine(slots=RANKS)

    def run(self, *, is_warm: bool) -> dict[str, float]:
        """Return the seconds from the grant, and from the launch on the host, to the later of the first steps."""
        return asyncio.run(launch(self.world, is_warm=is_warm, GLOO_SOCKET_IFNAME="lo"))

    def was_forked(self) -> bool:
        """Return whether the ranks of the latest run were forked."""
        runs = self.world.home / "state" / "runs"
        latest = max(runs.glob("*/events.supervisor"), key=lambda file: file.stat().st_mtime)
        return '"forked":true' in latest.read_text()


class Peers:
    """The same script, started without this package.

    :param forks: a process that runs :data:`FORKS`
    """

    def __init__(self, folder: Path, forks: subprocess.Popen[str]) -> None:
        self.folder, self.forks = folder, forks

    def _start(self, command: list[str], **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **VARIABLES, **variables}
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True)

    def directly(self) -> dict[str, float]:
        """Start one process per rank."""
        port, began, ranks = str(free_port()), time.time(), []
        for rank in range(RANKS):
            ranks.append(self._start([sys.executable, "train.py"], RANK=str(rank), **rendezvous(port)))
        return both(last_step(*(rank.communicate(timeout=600)[0] for rank in ranks)) - began)

    def torchrun(self) -> dict[str, float]:
        """Start torchrun, which starts the ranks."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        began = time.time()
        return both(last_step(self._start([*command, "train.py"]).communicate(timeout=600)[0]) - began)

    def forked(self) -> dict[str, float]:
        """Let the process that has imported PyTorch fork the ranks."""
        assert self.forks.stdin is not None
        assert self.forks.stdout is not None
        began = time.time()
        self.forks.stdin.write(f"{free_port()}\n")
        self.forks.stdin.flush()
        return {"launch": last_step(*(self.forks.stdout.readline() for _ in range(RANKS))) - began}


def both(seconds: float) -> dict[str, float]:
    """Return a time for both rows: without this package a launch has no steps before it."""
    return {"grant": seconds, "launch": seconds}


def rendezvous(port: str = "0") -> dict[str, str]:
    """Return the variables of a rank, without its number."""
    return {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


@contextmanager
def programs(folder: Path) -> Iterator[tuple[Ours, Peers]]:
    (folder / "train.py").write_text(SCRIPT)
    forks = subprocess.Popen(
        [sys.executable, "-c", FORKS],
        cwd=folder,
        env={**os.environ, **VARIABLES, **rendezvous()},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    # Files of the local state have long names: sockets below it need a short folder.
    with tempfile.TemporaryDirectory(prefix="w") as home:
        ours = Ours(Path(home))
        try:
            yield ours, Peers(folder, forks)
        finally:
            ours.world.hook.links.close_all()
            forks.kill()
            forks.wait()


def measure(run: Run) -> None:
    quiet()
    with programs(run.folder) as (ours, peers):
        peers.forked()
        for _ in range(LAUNCHES_BEFORE):
            ours.run(is_warm=True)
        if not ours.was_forked():
            run.note("The ranks of a warm start were executed: this machine cannot fork them.")
            return
        run.turns(
            {
                WARM: lambda: ours.run(is_warm=True),
                EXECUTED: lambda: ours.run(is_warm=False),
                DIRECT: peers.directly,
                TORCHRUN: peers.torchrun,
                FORKED: peers.forked,
            }
        )


SIDES = {WARM: OURS, EXECUTED: OURS, DIRECT: PEER, TORCHRUN: PEER}
BENCH = Bench(
    what="Start to first optimizer step, 2 ranks over gloo on this machine",
    rows=(
        Row(
            name="launch",
            what="From the command that starts the ranks, on the host, to the later of the two first steps",
            unit="s",
            sides={**SIDES, FORKED: LIMIT},
            base=DIRECT,
            goals=(Goal(side=WARM, at_most=0.15), Goal(side=EXECUTED, at_most=1.7)),
        ),
        Row(
            name="grant",
            what="From the grant of the slots, so with the round trips between Airflow's side and the host",
            unit="s",
            sides=SIDES,
            base=DIRECT,
        ),
    ),
    measure=measure,
    rounds=(9, 2),
)
