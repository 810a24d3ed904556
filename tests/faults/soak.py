"""Fuzz runs with faults on real hosts: a table of runs, violations and recovery times per fault.

    python -m tests.faults.soak --seed 1 --runs 100 --worlds 2
    python -m tests.faults.soak --seed 1 --runs 20 --inference
    python -m tests.faults.soak --seed 1 --runs 20 --airflow

Requires root. Each world has its own three hosts, store and trigger process. Worlds run in parallel. With
``--airflow`` there is one world with a complete Airflow, whose processes are killed and stopped, too. Violations are in
the table and, in full, in the folder that the program prints. The exit code is 1 with a violation, or when a world
failed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--worlds", type=int, default=1, help="number of parallel worlds")
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="start no run after this time")
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument("--faults", help="comma-separated names of the only faults")
    parser.add_argument("--most", type=int, default=2, help="most faults in one run")
    parser.add_argument("--inference", action="store_true", help="batch inferences instead of training")
    parser.add_argument("--airflow", action="store_true", help="one world, with a complete Airflow")
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def one_world(options: argparse.Namespace, number: int, out: Path) -> None:
    """Run this world's share of the seeds. A new world replaces one with a violation."""
    from tests.faults.fuzz import one_inference, one_run, possible
    from tests.faults.world import World, can_set_clocks

    stop_at = time.monotonic() + options.minutes * 60
    seeds = list(range(options.seed + number, options.seed + options.runs, options.worlds))
    databases = itertools.cycle(("sqlite", "postgresql") if options.database == "both" else (options.database,))
    for database in databases if number % 2 == 0 else itertools.islice(databases, 1, None):
        if not seeds:
            return
        with World(database, clocks=can_set_clocks(), disk_mib=256) as world:
            names = options.faults.split(",") if options.faults else possible(world, clocks=can_set_clocks())
            # A new world after 12 runs, so that files and rows do not accumulate.
            for _ in range(min(12, len(seeds))):
                if time.monotonic() > stop_at:
                    return
                one = one_inference if options.inference else one_run
                run = one(world, seeds.pop(0), names, most=options.most)
                note(out / f"world-{number}.tsv", run, database)
                if run.violations:
                    keep(out, run, world)
                    break


def under_airflow(options: argparse.Namespace, out: Path) -> None:
    """Run all seeds under one Airflow."""
    import shutil

    import tests.faults
    from tests.faults.fuzz_airflow import FAULTS, one_run
    from tests.faults.stage import Stage, staged

    here, home, dags = Path(tests.faults.__file__).parent, Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    shutil.copytree(here / "dags", dags, dirs_exist_ok=True)
    shutil.copytree(here / "code", dags / "code")
    names = options.faults.split(",") if options.faults else list(FAULTS)
    stop_at = time.monotonic() + options.minutes * 60
    with staged(Stage, home, dags, AIRFLOW__DTRAIN__KILL_GRACE_S="2") as stage:
        for seed in range(options.seed, options.seed + options.runs):
            if time.monotonic() > stop_at:
                return
            run = one_run(stage, seed, names, most=options.most)
            note(out / "world-airflow.tsv", run, "sqlite")
            if run.violations:
                text = "\n".join([*run.notes, "", *run.violations, "", stage.describe()])
                (out / f"seed-{run.seed}.txt").write_text(text)
                (out / f"seed-{run.seed}.log").write_bytes((home / "standalone.log").read_bytes())


def note(path: Path, run: Any, database: str) -> None:
    words = (
        run.seed,
        database,
        " + ".join(run.faults),
        len(run.violations),
        f"{run.recovery_s:.2f}",
        f"{run.wall_s:.1f}",
        *(f"{seconds:.3f}" for seconds in run.turns),
    )
    with path.open("a") as file:
        file.write("\t".join(map(str, words)) + "\n")


def keep(out: Path, run: Any, world: Any) -> None:
    """Save the notes, violations, state and log of a run."""
    text = "\n".join([*run.notes, "", *run.violations, "", world.describe()])
    (out / f"seed-{run.seed}.txt").write_text(text)
    (out / f"seed-{run.seed}.log").write_bytes(world.trigger.log.read_bytes())


def results(out: Path) -> list[Sequence[str]]:
    """Return the results of all worlds: seed, database, faults, violations, recovery time, duration, turns of loops."""
    return [line.split("\t") for path in sorted(out.glob("world-*.tsv")) for line in path.read_text().splitlines()]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the table of the results."""
    of: dict[str, list[Sequence[str]]] = defaultdict(list)
    for row in rows:
        for fault in row[2].split(" + "):
            of[fault].append(row)
    lines = [f"{'fault':<20}{'runs':>6}{'violations':>12}{'recovery median':>17}{'p95':>8}"]
    for fault, found in [*sorted(of.items()), ("all runs", rows)]:
        times = sorted(float(row[4]) for row in found if float(row[4]) >= 0) or [0.0]
        late = times[min(len(times) - 1, int(len(times) * 0.95))]
        wrong = sum(int(row[3]) > 0 for row in found)
        lines.append(f"{fault:<20}{len(found):>6}{wrong:>12}{statistics.median(times):>15.1f} s{late:>6.1f} s")
    walls, cpus = ([float(row[column]) for row in rows if len(row) > column] for column in (6, 7))
    lines.append(
        f"longest turn of an event loop: {max(walls, default=0.0):.2f} s, of CPU time {max(cpus, default=0.0):.2f} s"
    )
    return "\n".join(lines)


def main() -> int:
    """Run the worlds, print the table, and return the exit code."""
    options = arguments()
    if options.world is not None and options.airflow:
        under_airflow(options, options.out)
        return 0
    if options.world is not None:
        one_world(options, options.world, options.out)
        return 0
    out = options.out or Path(tempfile.mkdtemp(prefix="dtrain-soak-"))
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.faults.soak", *sys.argv[1:], "--out", str(out)]
    worlds = []
    for number in range(1 if options.airflow else options.worlds):
        environment = {**os.environ, "AIRFLOW_HOME": tempfile.mkdtemp(prefix="dtrain-soak-home-")}
        environment["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
        with (out / f"world-{number}.log").open("ab") as log:
            worlds.append(subprocess.Popen([*command, "--world", str(number)], env=environment, stdout=log, stderr=log))
    codes = [world.wait() for world in worlds]
    found = results(out)
    print(table(found), flush=True)
    print(f"Results: {out}")
    return int(any(codes) or not found or any(int(row[3]) > 0 for row in found))


if __name__ == "__main__":
    raise SystemExit(main())
