"""Cost of many trials: of those that run at once in one follower, and of those that a store has.

    python -m bench.bench_many_trials [--running 10,50,200] [--stored 1000,10000,100000] [--quick] [--json FILE]

First table: one process follows trials that run at once on this machine, as a triggerer does, with a store on SQLite.
Each trial is a shell that reports a number and writes a line every five seconds. Second table, per database: work on a
store beside finished trials. Costs are CPU time and statements, because the clock of a busy machine says nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.stored_trials import Costs, remove_all, stores, work_on

#: Seconds for the launch and end of one trial on a busy machine.
LAUNCH_MOST_S = 10


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=_numbers, default=[10, 50, 200], metavar="N,N", help="trials at once")
    parser.add_argument(
        "--stored", type=_numbers, default=[1000, 10_000, 100_000], metavar="N,N", help="finished trials"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="time for which running trials are measured")
    parser.add_argument("--databases", type=lambda text: text.split(","), default=["sqlite", "postgresql"])
    parser.add_argument("--quick", action="store_true", help="fewer trials: below 60 s of CPU time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    if options.quick:
        options.running, options.stored, options.seconds = [2, 8], [100, 1000], 15.0
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n", flush=True)
    found: dict[str, Any] = {"running": [], "stored": {}}
    if options.running:
        found["running"] = [_running(count, options.seconds) for count in options.running]
        _print_running(found["running"])
    for database in options.databases if options.stored else ():
        found["stored"][database] = _stored(database, options.stored)
        _print_stored(database, options.stored, found["stored"][database])
    print(f"\nload {os.getloadavg()[0]:.1f}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _running(count: int, seconds: float) -> dict[str, Any]:
    """Return the figures of trials that run at once, from a process of their own."""
    command = [sys.executable, "-m", "bench.running_trials", str(count), str(seconds)]
    limit_s = 120 + 2 * seconds + LAUNCH_MOST_S * count
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


#: Columns of the first table.
_HEADS = (
    "trials at once", "MB per trial", "threads", "CPU s to launch one", "CPU s to end one",
    "CPU ms per trial and second", "of these in the event loop", "the host's", "statements per trial and minute",
    "delay of the event loop, median / p99 ms",
)  # fmt: skip


def _print_running(rows: list[dict[str, Any]]) -> None:
    print(f"| {' | '.join(_HEADS)} |")
    print("|---" * len(_HEADS) + "|")
    for row in rows:
        count, run = row["trials"], row["run"]
        per_s = 1000 / run["wall_s"] / count
        print(
            f"| {count} | {row['bytes'] / 1e6 / count:.2f} | {row['threads']} "
            f"| {row['start']['cpu_s'] / count:.2f} | {row['end']['cpu_s'] / count:.2f} "
            f"| {run['cpu_s'] * per_s:.1f} | {run['loop_s'] * per_s:.1f} | {run['host_s'] * per_s:.1f} "
            f"| {run['statements'] / count / run['wall_s'] * 60:.0f} "
            f"| {run['delay_median_s'] * 1000:.1f} / {run['delay_p99_s'] * 1000:.0f} |",
            flush=True,
        )


def _stored(database: str, counts: list[int]) -> dict[str, list[tuple[float, float]]]:
    """Return per work, and for each number of trials, statements and CPU milliseconds."""
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name, stores(database, Path(name), counts) as opened:
        for count, store in opened:
            costs = Costs(store)
            for words, work in work_on(store).items():
                found.setdefault(words, []).append(costs.of(work))
            removed_s = costs.once(lambda _, store=store: remove_all(store))
            found.setdefault("`gc`: everything, per trial", []).append((0.0, removed_s / count * 1000))
    return found


def _print_stored(database: str, counts: list[int], found: dict[str, list[tuple[float, float]]]) -> None:
    print(f"\n| {database}: CPU ms | statements | {' | '.join(f'{count:,} trials' for count in counts)} |")
    print("|---" * (len(counts) + 2) + "|")
    for words, of in found.items():
        statements = f"{of[0][0]:.0f}" if of[0][0] else ""
        print(f"| {words} | {statements} | {' | '.join(f'{cpu_ms:.2f}' for _, cpu_ms in of)} |", flush=True)


if __name__ == "__main__":
    main()
