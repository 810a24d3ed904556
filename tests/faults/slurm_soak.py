"""Fuzz runs with faults on real Slurm clusters: a table of runs, violations and durations per fault.

    python -m tests.faults.slurm_soak --seed 1 --runs 100 --worlds 2

Requires root and Slurm. Each world has its own cluster, store and trigger process. The exit code is 1 with a violation.
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from testbed import task_logs
from tests.faults.fuzz import Run
from tests.faults.slurm_faults import FAULTS, Undo
from tests.faults.slurm_world import SlurmWorld
from tests.faults.soak import note, results, table
from tests.faults.verdict import wrong_end, wrong_start

#: Runs of one world, so that files and rows do not accumulate.
RUNS_OF_WORLD = 12
#: Longest wait for the rest of a log.
LOG_PATIENCE_S = 20.0


def one_run(world: SlurmWorld, seed: int, names: Sequence[str] = tuple(FAULTS), *, most: int = 2) -> Run:
    """Run one or two trials with some faults, and return the record with its violations.

    :param names: faults to choose from
    :param most: largest number of faults in one run
    """
    dice, begun, notes = random.Random(seed), time.monotonic(), list[str]()
    sizes, until = dice.choice([(2,), (4,), (4,), (1,), (2, 2), (4, 2)]), dice.choice([30, 60])
    trials = [
        world.submit(size, until=until, save_every=dice.choice([3, 7]), shared=dice.random() < 0.5) for size in sizes
    ]
    chosen = tuple(dice.sample(list(names), dice.randint(1, min(most, len(names)))))
    undos: list[Undo] = []
    try:
        if dice.random() < 0.6:
            step = dice.choice([1, 5, 12])
            world.until(lambda: world.over(trials[0]) or world.step(trials[0]) >= step, f"step {step}", 40)
        else:
            _wait(dice.uniform(0.0, 4.0))
        for name in chosen:
            notes.append(f"{time.monotonic() - begun:.1f} s: {name}")
            undos.append(FAULTS[name](world, dice))
            _wait(dice.choice([0.0, 0.3, 2.0]))
        _wait(dice.choice([dice.uniform(0.5, 3.0), dice.uniform(2.0, 8.0), world.orphan_timeout_s * 1.7]))
        for undo in undos:
            undo()
        world.heal()
        notes.append(f"{time.monotonic() - begun:.1f} s: healed")
        recovery_s = world.settle(trials)
        found = violations(world, trials)
    except Exception as error:
        recovery_s, found = -1.0, [f"did not settle: {error!r}"]
        notes.append(traceback.format_exc())
    return Run(seed, chosen, tuple(found), recovery_s, time.monotonic() - begun, notes)


def violations(world: SlurmWorld, trials: list[int]) -> list[str]:
    """Return what does not hold after a world has settled."""
    found = []
    for trial in trials:
        found += wrong_end(world, trial)  # type: ignore[arg-type]
        found += wrong_start(world, trial)  # type: ignore[arg-type]
        found += lost_lines(world, trial)
    found += [f"{count} jobs were accepted as {name}" for name, count in world.submissions().items() if count > 1]
    path = world.witness / "violations"
    if path.exists():
        found += [f"two gangs of a trial at once: {line}" for line in path.read_text().splitlines()]
        path.unlink()
    return found


def lost_lines(world: SlurmWorld, trial: int) -> list[str]:
    """Return lines of rank 0 on a node that the task log neither has nor marks as left out."""
    logs = world.logs.logs()
    runs = {one.number: str(one.run) for one in world.store.attempts.of_trial(trial) if one.run in logs}
    give_up_at = time.monotonic() + LOG_PATIENCE_S
    while True:
        shown = task_logs.read(world.task_log(trial), trial)
        found = task_logs.lost(shown, {number: (run, logs[run]) for number, run in runs.items()})
        if not found or time.monotonic() > give_up_at:
            return found
        _wait(0.5)


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def one_world(options: argparse.Namespace, number: int, out: Path) -> None:
    """Run this world's share of the seeds.

    A new world replaces one with a violation, and one whose controller has lost a state that it had not yet written.
    """
    stop_at = time.monotonic() + options.minutes * 60
    seeds = list(range(options.seed + number, options.seed + options.runs, options.worlds))
    names = options.faults.split(",") if options.faults else list(FAULTS)
    made = number
    while seeds and time.monotonic() < stop_at:
        login = ("ssh", "local")[made % 2]
        made += 1
        with SlurmWorld(login) as world:
            for _ in range(RUNS_OF_WORLD):
                if not seeds or time.monotonic() > stop_at:
                    return
                run = one_run(world, seeds.pop(0), names, most=options.most)
                note(out / f"world-{number}.tsv", run, login)
                if run.violations:
                    text = "\n".join([*run.notes, "", *run.violations, "", world.describe()])
                    (out / f"seed-{run.seed}.txt").write_text(text)
                    (out / f"seed-{run.seed}.log").write_bytes(world.trigger.log.read_bytes())
                    log = world.slurm.folder / "log" / "slurmctld.log"
                    (out / f"seed-{run.seed}.slurmctld").write_bytes(log.read_bytes())
                if run.violations or world.has_forgotten:
                    break


def main() -> int:
    """Run the worlds, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.slurm_soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--worlds", type=int, default=1, help="number of parallel worlds")
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="start no run after this time")
    parser.add_argument("--faults", help="comma-separated names of the only faults")
    parser.add_argument("--most", type=int, default=2, help="most faults in one run")
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.world is not None:
        one_world(options, options.world, options.out)
        return 0
    out = options.out or Path(tempfile.mkdtemp(prefix="dtrain-slurm-soak-"))
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.faults.slurm_soak", *sys.argv[1:], "--out", str(out)]
    worlds = []
    for number in range(options.worlds):
        environment = {**os.environ, "AIRFLOW_HOME": tempfile.mkdtemp(prefix="dtrain-soak-home-")}
        environment["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
        environment["AIRFLOW__CORE__FERNET_KEY"] = base64.urlsafe_b64encode(os.urandom(32)).decode()
        with (out / f"world-{number}.log").open("ab") as log:
            worlds.append(subprocess.Popen([*command, "--world", str(number)], env=environment, stdout=log, stderr=log))
    codes = [world.wait() for world in worlds]
    found = results(out)
    print(table(found), flush=True)
    print(f"Results: {out}")
    return int(any(codes) or not found or any(int(row[3]) > 0 for row in found))


if __name__ == "__main__":
    raise SystemExit(main())
