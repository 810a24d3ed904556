"""One rank that writes much log, ten quiet trials beside it, under Airflow's own triggerer.

``python -m bench.bench_log_volume [--rates 1000 20000] [--seconds 15]``. It prints a table and never fails.
Renewal age: the oldest lease renewal of the quiet trials that was seen. Slots: from the last byte of the loud rank's
log to free slots. Lines: share of its lines in the task log, and what the marks name of the rest. Loop: longest time
between two polls of the triggerer's event loop while the loud rank runs, CPU of its thread and wall clock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

QUIET, LENGTH = 10, 50


def main() -> None:
    """Print one row per rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[1000, 20000])
    parser.add_argument("--seconds", type=int, default=15)
    args = parser.parse_args()
    print(
        "| lines/s | load | oldest renewal s | slots free after s | lines there | marked | loop cpu s | loop wall s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for rate in args.rates:
        row = measure(rate, args.seconds)
        print("| " + " | ".join([str(rate), *row]) + " |", flush=True)


def measure(rate: int, seconds: int) -> list[str]:
    """Return the figures of one rate."""
    folder = Path(tempfile.mkdtemp(prefix="dtrain-log-"))
    os.environ["HOME"] = str(folder)
    from testbed.log_scene import LogScene

    scene = LogScene(folder, slots=QUIET + 1)
    try:
        quiet = scene.submit(QUIET, lines=2 * seconds, rate=1)
        triggerer = scene.start(quiet)
        scene.until(lambda: all(scene.count(one) > 0 for one in quiet), "the quiet trials")
        (folder / f"{triggerer.job}.turns").unlink(missing_ok=True)
        (loud,) = scene.submit(1, lines=rate * seconds, rate=rate)
        load = os.getloadavg()[0]
        triggerer.set(scene.triggers([*quiet, loud]))
        return [f"{load:.0f}", *_watch(scene, quiet, loud, rate * seconds), *_loop(folder, triggerer.job)]
    finally:
        scene.close()


def _watch(scene: Any, quiet: list[int], loud: int, lines: int) -> list[str]:
    store, oldest_s, ended_at, free_at = scene.hook.store, 0.0, 0.0, 0.0
    give_up_at, path = time.monotonic() + 400, None
    while time.monotonic() < give_up_at:
        views = [store.attempts.get(store.trials.get(one).attempt_id) for one in quiet]
        ages = [(datetime.now(UTC) - view.renewed_at).total_seconds() for view in views
                if view.renewed_at and view.state == "running"]  # fmt: skip
        oldest_s = max([oldest_s, *ages])
        view = store.attempts.get(store.trials.get(loud).attempt_id)
        if path is None and view.run:
            path = next((one for one in scene.state.rglob("log") if view.run in str(one)), None)
        if path is not None and path.exists() and not ended_at and _is_whole(path, lines):
            ended_at = path.stat().st_mtime
        if ended_at and not view.held_hosts:
            free_at = free_at or time.time()
        if free_at and _fired(scene, loud):
            break
        time.sleep(0.1)
    shown, from_host = scene.shown(loud), path.read_bytes() if path is not None else b""
    there = sum(len(counts) for counts in shown.lines.values())
    marked = sum(end - start for ranges in shown.marks.values() for start, end in ranges)
    slots = f"{free_at - ended_at:.1f}" if free_at else "never"
    return [f"{oldest_s:.1f}", slots, f"{100 * there / lines:.1f} %", f"{100 * marked / max(1, len(from_host)):.1f} %"]


def _is_whole(path: Path, lines: int) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 200))
        return f" {lines - 1} ".encode() in file.read()


def _fired(scene: Any, trial_id: int) -> bool:
    return any(event["id"] == trial_id for event in scene.events())


def _loop(folder: Path, job: int) -> list[str]:
    path = folder / f"{job}.turns"
    found = json.loads(path.read_text()) if path.exists() else {"cpu_s": 0.0, "wall_s": 0.0}
    return [f"{found['cpu_s']:.3f}", f"{found['wall_s']:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
