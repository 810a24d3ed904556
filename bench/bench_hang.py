"""Time from the hang of a rank (SIGSTOP) until the task log names it, and false alarms in a soak.

Two ranks over gloo on this machine, followed by the engine. The soak has slow steps, checkpoints and data stalls.
torchrun runs two ranks beside it: it does not report a stopped rank before the process group's time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.engine_worlds import LOG, World
from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row

TRAIN = """
import os, random, sys, time, torch
import airflow_provider_dtrain.train as dtrain

MODE, HOME = sys.argv[1], os.environ["BENCH_HOME"]

class Data(torch.utils.data.Dataset):
    '''Samples, of which a few take very long.'''
    def __len__(self): return 4096
    def __getitem__(self, i):
        if MODE == "soak" and i % 512 == 100: time.sleep(12)
        return torch.full((64,), float(i)), torch.zeros(1)

def burn(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until: sum(range(1000))

with dtrain.init(device="cpu", hparams={"global_batch_size": 16}) as ctx:
    model = torch.nn.Linear(64, 1)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    rank, step = ctx.distributed.get_rank(), 0
    for epoch in ctx.epochs(1000):
        for x, y in ctx.loader(Data()):
            if MODE == "soak" and step % 60 == 20 and rank == step // 60 % 2: burn(15)
            if MODE == "soak" and step % 60 == 40: ctx.distributed.on_chief(lambda: time.sleep(12))
            if MODE == "soak" and step % 60 == 50: ctx.save_checkpoint(step)
            ctx.backward(((model(x) - y) ** 2).mean())
            ctx.step(optimizer)
            step += 1
            if step % 10 == 0 and rank == 0: print("step", step, flush=True)
            time.sleep(0.02)
        if ctx.distributed.any(os.path.exists(HOME + "/enough")): break
"""
TORCHRUN = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(1)); time.sleep(0.02)
"""


class Lines(logging.Handler):
    """Log handler that records the lines of the task log with their times."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((time.monotonic(), record.getMessage()))

    def since(self, begun: float, words: str) -> list[tuple[float, str]]:
        return [(at, line) for at, line in self.lines if at >= begun and words in line]

    def wait(self, words: str, begun: float, timeout_s: float, task: Any) -> tuple[float, str]:
        """Wait for the first line with these words, and return its time and text."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.since(begun, words)):
            if time.monotonic() > deadline or task.done():
                raise RuntimeError(f"The task log has no line with {words!r} after {timeout_s:g} s: {self.lines[-5:]}")
            time.sleep(0.01)
        return found[0]


def rank_pids(home: Path) -> dict[int, int]:
    """Return rank -> pid of the benchmark's run."""
    found = {}
    for file in (home / "state" / "runs").glob("*/state.json"):
        for rank, pid in re.findall(r'"rank":(\d+),"pid":(\d+),"start_time":\d+,"exit_code":null', file.read_text()):
            found[int(rank)] = int(pid)
    return found


async def stop_ranks(world: World, lines: Lines, run: Run) -> None:
    """Add the seconds from each SIGSTOP until the rank was named."""
    runtime, task = await world.follow(world.submit("python train.py plain", slots=2))
    await asyncio.to_thread(lines.wait, "step 50", 0.0, 300, task)
    for number in range(run.rounds):
        # At a random time between two heartbeats.
        await asyncio.sleep(random.uniform(1.0, 6.0))  # noqa: S311
        rank = number % 2
        pid, begun = rank_pids(world.home)[rank], time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            at, line = await asyncio.to_thread(lines.wait, "made no progress", begun, 120, task)
        finally:
            os.kill(pid, signal.SIGCONT)
        if not line.startswith(f"Rank {rank} "):
            raise RuntimeError(f"The task log named the wrong rank: {line}")
        run.add("named", "ours", at - begun)
        await asyncio.to_thread(lines.wait, "resumed after", begun, 120, task)
    runtime.kill()
    await task


async def soak(world: World, lines: Lines, seconds: float) -> tuple[list[str], str]:
    """Return the false alarms about a healthy gang, and its last step."""
    begun = time.monotonic()
    runtime, task = await world.follow(world.submit("python train.py soak", slots=2))
    await asyncio.to_thread(lines.wait, "step 10", begun, 300, task)
    await asyncio.wait([task], timeout=seconds)
    alarms = [line for _, line in lines.since(begun, "made no progress")]
    alarms += [line for _, line in lines.since(begun, "No rank has made")]
    steps = [line for _, line in lines.since(begun, "step ")]
    if task.done():
        raise RuntimeError(f"The soak ended early: {task}")
    runtime.kill()
    await task
    return alarms, steps[-1] if steps else "no step"


def torchrun(home: Path, seconds: float) -> tuple[float, str]:
    """Return the seconds until torchrun reports that one of its two ranks is stopped, and what it prints."""
    (home / "peer.py").write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "peer.py"]
    process = subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline, ranks = time.monotonic() + 120, []
        while len(ranks) < 2 and time.monotonic() < deadline:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            ranks = [int(pid) for pid in children if b"peer.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            time.sleep(0.1)
        time.sleep(10)
        os.kill(ranks[1], signal.SIGSTOP)
        assert process.stdout is not None
        begun = time.monotonic()
        if select.select([process.stdout], [], [], seconds)[0]:
            text = os.read(process.stdout.fileno(), 200).decode(errors="replace").strip()
            return time.monotonic() - begun, f"torchrun prints: {text}"
        return seconds, f"torchrun printed nothing for {seconds:g} s. Its row is that lower bound."
    finally:
        with contextlib.suppress(OSError, IndexError):
            os.kill(ranks[1], signal.SIGCONT)
        process.terminate()
        process.wait(60)


def measure(run: Run) -> None:
    logging.disable(logging.DEBUG)
    lines = Lines()
    LOG.setLevel(logging.INFO)
    LOG.addHandler(lines)
    LOG.propagate = False
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        home = Path(folder)
        world = World(home)
        (home / "code" / "train.py").write_text(TRAIN.replace('os.environ["BENCH_HOME"]', repr(str(home))))
        world.add_this_machine(slots=2)
        try:
            asyncio.run(stop_ranks(world, lines, run))
            if not run.is_quick:
                alarms, last = asyncio.run(soak(world, lines, SOAK_S))
                run.add("false alarms", "ours", len(alarms))
                run.note(f"The soak of {SOAK_S:g} s ended at {last}. Alarms: {alarms or 'none'}.")
        finally:
            world.hook.links.close_all()
        seconds, text = torchrun(home, run.size(60, 10))
        run.add("named", "torchrun", seconds)
        run.note(text)


SOAK_S = 300
BENCH = Bench(
    what="A rank that hangs",
    rows=(
        Row(
            name="named",
            what="From the stop of one of two ranks until the task log names it",
            unit="s",
            sides={"ours": OURS, "torchrun": PEER},
            base="torchrun",
            goals=(Goal(side="ours", at_most=10, quantile=1),),
        ),
        Row(
            name="false alarms",
            what="In a healthy run of five minutes with slow steps; not with --quick",
            unit="alarms",
            sides={"ours": OURS},
            goals=(Goal(side="ours", at_most=0),),
        ),
    ),
    measure=measure,
    rounds=(20, 1),
)
