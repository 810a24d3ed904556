"""Time from on_kill until every process on every host has ended, with ranks that have detached children.

The sequence is that of the trigger: follow, be cancelled, kill. With root the hosts are network namespaces reached by
SSH, otherwise this machine. Peers, according to their documentation: Slurm waits KillWait (30 s) before SIGKILL; the
SSH operators of Airflow leave the remote processes running.

    python bench/bench_kill.py [--rounds 100] [--hosts 3] [--ranks-per-host 2] [--local]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine_worlds import World, add_host_options, load_words, world_of  # noqa: E402

from airflow_provider_dtrain.engine.attempt.runner import AttemptRunner  # noqa: E402

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


async def measure(world: World, rounds: int, ranks: int, took: list[float], survivors: list[int]) -> None:
    """Append seconds and survivors of each round."""
    for number in range(rounds):
        seconds, left = await one_round(world, number, ranks)
        took.append(seconds)
        survivors.append(left)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    add_host_options(parser)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with world_of(options) as (world, slots, hosts):
        took: list[float] = []
        survivors: list[int] = []
        # After an interrupt, the rounds so far are printed.
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(measure(world, options.rounds, slots, took, survivors))
    took.sort()
    processes = slots * PROCESSES_PER_RANK
    print(f"kill of {processes} processes on {hosts} ({load_words()})")
    print(f"{'rounds':>7} {'p50 s':>7} {'p99 s':>7} {'max s':>7} {'survivors':>10}   goal: p99 <= 2 s, 0 survivors")
    p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]
    print(f"{len(took):7} {p50:7.3f} {p99:7.3f} {took[-1]:7.3f} {sum(survivors):10}")


if __name__ == "__main__":
    main()
