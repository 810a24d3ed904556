"""Cost of many trials: of those that run at once in one follower, and of those that a store has.

One process follows trials that run at once on this machine, as a triggerer does, with a store on SQLite. Each trial is
a shell that reports a number and writes a line every five seconds. Then, per database, work on a store beside finished
trials. Costs are CPU time and statements, because the clock of a busy machine says nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.framework.measuring import Run
from bench.framework.rows import OURS, Bench, Row
from bench.stored_trials import Costs, remove_all, stores, work_on
from testbed.stores import server_programs

#: Seconds for the launch and end of one trial on a busy machine.
LAUNCH_MOST_S = 10
RUNNING, FEW_RUNNING = (10, 50, 200), (2, 8)
STORED, FEW_STORED = (1000, 10_000, 100_000), (100, 1000)
GC = "`gc`: everything, per trial"
WORKS = (
    "life of a trial, without hosts",
    "round of recovery",
    "trials without a follower",
    "gangs of the queue",
    "slots of the pools",
    "`gc`: archives in use",
    "`gc`: nothing to remove",
    "`trials list`",
    "`trials list --state running`",
    "`trials show`",
    "`experiments list`",
    "`experiments show`",
    "page of experiments: version",
    "page of the queue",
    "trials of a task",
    "timeline of a trial",
    GC,
)


def side(count: int) -> str:
    """Return the name of a number of trials in the tables."""
    return f"{count:,} trials"


def figures(count: int, seconds: float) -> dict[str, float]:
    """Return row -> figure of trials that run at once, from a process of their own."""
    command = [sys.executable, "-m", "bench.running_trials", str(count), str(seconds)]
    limit_s = 120 + 2 * seconds + LAUNCH_MOST_S * count
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    run = found["run"]
    per_s = 1000 / run["wall_s"] / count
    values = (
        found["bytes"] / 1e6 / count, found["threads"], found["start"]["cpu_s"] / count, found["end"]["cpu_s"] / count,
        run["cpu_s"] * per_s, run["loop_s"] * per_s, run["host_s"] * per_s,
        run["statements"] / count / run["wall_s"] * 60, run["delay_median_s"] * 1000, run["delay_p99_s"] * 1000,
    )  # fmt: skip
    return dict(zip(FIGURES, values, strict=True))


def measure(run: Run) -> None:
    for count in run.size(RUNNING, FEW_RUNNING):
        for row, value in figures(count, run.size(60.0, 15.0)).items():
            run.add(row, side(count), value)
    databases = DATABASES if server_programs() else DATABASES[:1]
    for database in databases:
        counts = list(run.size(STORED, FEW_STORED))
        with tempfile.TemporaryDirectory() as name, stores(database, Path(name), counts) as opened:
            for count, store in opened:
                costs = Costs(store)
                for words, work in work_on(store).items():
                    run.add(f"{words}, {database}", side(count), costs.of(work)[1])
                removed_s = costs.once(lambda _, store=store: remove_all(store))
                run.add(f"{GC}, {database}", side(count), removed_s / count * 1000)


DATABASES = ("sqlite", "postgresql")
#: Row of trials that run at once -> unit.
FIGURES = {
    "memory": "MB per trial", "threads": "threads", "launch": "s of CPU per trial", "end": "s of CPU per trial",
    "running": "ms of CPU per trial and second", "event loop": "ms of CPU per trial and second",
    "host": "ms of CPU per trial and second", "statements": "per trial and minute",
    "delay of the event loop": "ms", "p99 delay of the event loop": "ms",
}  # fmt: skip
BENCH = Bench(
    what="Many trials: at once in one follower, and finished ones in a store",
    rows=(
        *(
            Row(
                name=name,
                what="Trials that run at once",
                unit=unit,
                sides={side(count): OURS for count in FEW_RUNNING + RUNNING},
            )
            for name, unit in FIGURES.items()
        ),
        *(
            Row(
                name=f"{words}, {database}",
                what="One call beside finished trials",
                unit="ms of CPU",
                sides={side(count): OURS for count in FEW_STORED + STORED},
            )
            for database in DATABASES
            for words in WORKS
        ),
    ),
    measure=measure,
    rounds=(1, 1),
)
