"""Cost of following many trials in one process, as a triggerer does.

    python -m bench.running_trials COUNT SECONDS

The trials run at once on this machine, each under its supervisor: a shell that reports a number every five seconds. The
process prints one line of JSON. A process of its own has the memory of these trials only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench.engine_worlds import World

#: Ends once the file ``stop`` exists, so that all trials run during the measurement.
SCRIPT = """i=0
while [ ! -e {stop} ]; do
    i=$((i + 1))
    echo "{{\\"step\\": $i, \\"metrics\\": {{\\"loss\\": 0.5}}}}" >> "$DTRAIN_METRICS"
    echo "step $i"
    sleep 5
done
"""
#: Seconds between two looks at the delay of the event loop.
BEAT_S = 0.05
#: Seconds after the start of the last trial.
SETTLE_S = 5.0


class Watch:
    """Counters of this process: CPU time, the event loop's share of it, statements, and delays of the event loop."""

    def __init__(self, engine: sa.Engine) -> None:
        self._statements = itertools.count()
        self.delays: list[float] = []
        sa.event.listen(engine, "before_cursor_execute", lambda *_: next(self._statements))
        self._begin()

    def _begin(self) -> None:
        self._at, self._cpu_s, self._loop_s = time.monotonic(), time.process_time(), time.thread_time()
        self._host_s = children_s()
        self._first = next(self._statements)
        self.delays.clear()

    async def beat(self) -> None:
        """Note how late the event loop wakes a coroutine."""
        while True:
            due = time.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.delays.append(time.monotonic() - due)

    def read(self) -> dict[str, float]:
        """Return the counters since the last call, from the thread of the event loop."""
        ordered = sorted(self.delays) or [0.0]
        found = {
            "wall_s": time.monotonic() - self._at,
            "cpu_s": time.process_time() - self._cpu_s,
            "loop_s": time.thread_time() - self._loop_s,
            "host_s": children_s() - self._host_s,
            "statements": next(self._statements) - self._first - 1,
            "delay_median_s": ordered[len(ordered) // 2],
            "delay_p99_s": ordered[len(ordered) * 99 // 100],
        }
        self._begin()
        return found


def children_s() -> float:
    """Return the CPU seconds of this process's children: the host's end of the channel, without supervisors."""
    found = 0.0
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def own_bytes() -> int:
    """Return the memory that is this process's alone."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


async def measure(world: World, count: int, seconds: float) -> dict[str, Any]:
    """Follow trials from their launch to their end, and return what each part of it took."""
    stop = world.home / "stop"
    (world.home / "code" / "trial.sh").write_text(SCRIPT.format(stop=stop))
    store = world.hook.store
    tickets = [world.submit(["sh", "trial.sh"], slots=1) for _ in range(count)]
    memory, watch = own_bytes(), Watch(store.db.engine)
    beat = asyncio.create_task(watch.beat())
    followers = [(await world.follow(ticket))[1] for ticket in tickets]
    while sum(task.state == "running" for task in await asyncio.to_thread(store.queue_view.tasks)) < count:
        for ended in (one for one in followers if one.done()):
            raise RuntimeError(f"A trial has ended before its time: {ended.result()}")
        await asyncio.sleep(1)
    started = watch.read()
    await asyncio.sleep(SETTLE_S)
    watch.read()
    await asyncio.sleep(seconds)
    running = watch.read()
    grown = own_bytes() - memory
    threads = threading.active_count()
    stop.touch()
    outcomes = await asyncio.gather(*followers)
    ended = watch.read()
    beat.cancel()
    assert all(one is not None and one.state == "completed" for one in outcomes), outcomes
    return {"start": started, "run": running, "end": ended, "bytes": grown, "threads": threads}


def main() -> None:
    """Print the figures of one number of trials."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name))
        try:
            world.add_this_machine(options.count)
            print(json.dumps(asyncio.run(measure(world, options.count, options.seconds))), flush=True)
        finally:
            (world.home / "stop").touch()
            world.hook.links.close_all()


if __name__ == "__main__":
    main()
