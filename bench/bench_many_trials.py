"""Cost of many trials: of those that run at once in one follower, and of those that a store has.

One process follows trials that run at once on this machine, as a triggerer does, with a store on SQLite. Each trial is
a shell that reports a number and writes a line every five seconds. Then work on a store is measured beside finished
trials, on each database. The figures are CPU time and statements, because the clock of a busy machine says nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from bench.framework.measuring import Run
from bench.framework.rows import OURS, Bench, Goal, Row
from bench.stored_trials import CONSTANT, LINEAR, Costs, remove_all, stores
from testbed.stores import server_programs

#: Seconds for the launch and the end of one trial on a busy machine.
LAUNCH_MOST_S = 10
SIDES = dict.fromkeys(("few", "more", "many"), OURS)
DATABASES = ("sqlite", "postgresql")
REMOVAL = "gc: everything, per trial"


def measure(run: Run) -> None:
    counts = run.size((10, 50, 200), (1, 2, 4))
    run.turns({side: partial(at_once, count, run.size(60.0, 2.0)) for side, count in zip(SIDES, counts, strict=True)})
    for database in DATABASES if server_programs() and not run.is_quick else DATABASES[:1]:
        stored(run, database, run.size([1000, 10_000, 100_000], [20, 60, 200]))


def at_once(count: int, seconds: float) -> Mapping[str, float]:
    """Return the costs per trial of trials that run at once, from a process of their own."""
    command = [sys.executable, "-m", "bench.running_trials", str(count), str(seconds)]
    limit_s = 120 + 2 * seconds + LAUNCH_MOST_S * count
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    during = found["run"]
    per_s = 1000 / during["wall_s"] / count
    return {
        "launch": found["start"]["cpu_s"] / count,
        "end": found["end"]["cpu_s"] / count,
        "follower": during["cpu_s"] * per_s,
        "event loop": during["loop_s"] * per_s,
        "host": during["host_s"] * per_s,
        "statements": during["statements"] / count / during["wall_s"] * 60,
        "memory": found["bytes"] / 1e6 / count,
        "delay": during["delay_p99_s"] * 1000,
    }


def stored(run: Run, database: str, counts: list[int]) -> None:
    """Measure work beside each number of finished trials."""
    with stores(database, run.folder, counts) as opened:
        for side, (count, store) in zip(SIDES, opened, strict=True):
            costs = Costs(store)
            for words, work in {**CONSTANT, **LINEAR}.items():
                run.add(f"{database}, {words}", side, costs.of(partial(work, store)))
            removed_s = costs.once(lambda _, store=store: remove_all(store))
            run.add(f"{database}, {REMOVAL}", side, removed_s / count * 1000)


def _row(name: str, what: str, unit: str, at_most: float | None = None) -> Row:
    goals = () if at_most is None else (Goal(side="many", of="few", at_most=at_most),)
    return Row(name=name, what=what, unit=unit, sides=SIDES, base="few", goals=goals)


RUNNING = (
    _row("launch", "10, 50 and 200 at once: CPU of the follower to launch one", "s", 1.3),
    _row("end", "the same to end one", "s", 1.3),
    _row("follower", "CPU of the follower per trial and second", "ms/s", 1.3),
    _row("event loop", "of these in the event loop", "ms/s", 1.3),
    _row("host", "CPU of the host's end of the channel per trial and second", "ms/s", 1.3),
    _row("statements", "statements per trial and minute", "1/min", 1.3),
    _row("memory", "memory of the follower per trial", "MB", 1.3),
    _row("delay", "delay of the event loop, p99", "ms"),
)
STORED = tuple(
    _row(f"{database}, {words}", "beside 1,000, 10,000 and 100,000 finished trials", "ms", at_most)
    for database in DATABASES
    for words, at_most in (*((words, 1.5) for words in CONSTANT), *((words, None) for words in LINEAR), (REMOVAL, 1.5))
)
BENCH = Bench(
    what="trials that run at once in one follower, and finished trials in a store",
    rows=(*RUNNING, *STORED),
    measure=measure,
    rounds=(1, 1),
)
