"""Time from on_kill until every process on every host has ended, with ranks that have detached children.

The sequence is that of the trigger: follow, be cancelled, kill. With root the hosts are network namespaces reached by
SSH, otherwise this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner
from bench.engine_worlds import World, quiet, world_of
from bench.framework.measuring import Run
from bench.framework.rows import OURS, Bench, Goal, Row

#: A rank, a child in its own session, and two orphans.
PROCESSES_PER_RANK = 4


def entrypoint(mark: str) -> list[str]:
    """Return the command of a rank, whose processes all have ``mark`` as their argument."""
    detached = f"setsid sh -c 'sleep {mark} & exec sleep {mark}' & setsid sleep {mark} & exec sleep {mark}"
    return ["bash", "-c", detached]


def alive(mark: str) -> list[int]:
    """Return the living processes with the mark, in all namespaces of this machine."""
    found, wanted = [], mark.encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if wanted in words and words[0].endswith(b"sleep"):
                    found.append(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> float:
    """Return the monotonic time at which the last process had ended, at the latest after a minute."""
    deadline = time.monotonic() + 60
    while (pids := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.002)
    return time.monotonic()


async def one_round(world: World, number: int, ranks: int) -> tuple[float, int]:
    """Return the seconds until the last process had ended, and the number of survivors after a minute."""
    mark = f"{100_000 + number}"
    runtime, following = await world.follow(world.submit(entrypoint(mark), slots=ranks))
    deadline, pids = time.monotonic() + 120, []
    while len(pids) < ranks * PROCESSES_PER_RANK:
        if following.done() or time.monotonic() > deadline:
            raise RuntimeError(f"Round {number} has only {len(pids)} processes: {following}")
        await asyncio.sleep(0.02)
        pids = alive(mark)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    called_at = time.monotonic()
    gone_at = asyncio.create_task(asyncio.to_thread(wait_until_gone, pids))
    await AttemptRunner(runtime).kill()
    return await gone_at - called_at, len(alive(mark))


async def kill_all(world: World, run: Run, ranks: int) -> None:
    """Add seconds and survivors of each round."""
    for number in range(run.rounds):
        seconds, left = await one_round(world, number, ranks)
        run.add("end", "ours", seconds)
        run.add("survivors", "ours", left)


def measure(run: Run) -> None:
    quiet()
    with world_of(hosts=3, ranks_per_host=2) as (world, slots, hosts):
        run.note(f"{slots * PROCESSES_PER_RANK} processes on {hosts}.")
        asyncio.run(kill_all(world, run, slots))


BENCH = Bench(
    what="A kill of a gang whose ranks have detached children",
    rows=(
        Row(
            name="end",
            what="From on_kill until every process on every host has ended",
            unit="s",
            sides={"ours": OURS},
            goals=(Goal(side="ours", at_most=2, quantile=0.99),),
        ),
        Row(
            name="survivors",
            what="Processes that live a minute later",
            unit="processes",
            sides={"ours": OURS},
            goals=(Goal(side="ours", at_most=0, quantile=1),),
        ),
    ),
    measure=measure,
    rounds=(100, 5),
)
