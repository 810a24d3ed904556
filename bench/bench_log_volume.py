"""One rank that writes much log, ten quiet trials beside it, under Airflow's own triggerer.

Renewal: the oldest lease renewal of the quiet trials that was seen. Slots: from the last byte of the loud rank's log to
free slots. Lines: share of its lines in the task log, and what the marks name of the rest. Loop: longest time between
two polls of the triggerer's event loop while the loud rank runs.
"""

from __future__ import annotations

import glob
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.framework.measuring import Run
from bench.framework.rows import OURS, Bench, Row

QUIET, LENGTH = 10, 50


RATES = {"1,000 lines/s": 1000, "20,000 lines/s": 20_000}


def measure(run: Run) -> None:
    for _ in range(run.rounds):
        for side, rate in RATES.items():
            for row, value in figures(rate, run.size(15, 5)).items():
                run.add(row, side, value)


def figures(rate: int, seconds: int) -> dict[str, float]:
    """Return row -> figure of one rate."""
    folder = Path(tempfile.mkdtemp(prefix="l"))
    os.environ["HOME"] = str(folder)
    from testbed.log_scene import LogScene

    scene = LogScene(folder, slots=QUIET + 1)
    try:
        quiet = scene.submit(QUIET, lines=2 * seconds, rate=1)
        triggerer = scene.start(quiet)
        scene.until(lambda: all(scene.count(one) > 0 for one in quiet), "the quiet trials")
        (folder / f"{triggerer.job}.turns").unlink(missing_ok=True)
        (loud,) = scene.submit(1, lines=rate * seconds, rate=rate)
        triggerer.set(scene.triggers([*quiet, loud]))
        return {**_watch(scene, quiet, loud, rate * seconds), **_loop(folder, triggerer.job)}
    finally:
        scene.close()


def _watch(scene: Any, quiet: list[int], loud: int, lines: int) -> dict[str, float]:
    store, oldest_s, ended_at, free_at = scene.hook.store, 0.0, 0.0, 0.0
    give_up_at, path = time.monotonic() + 400, None
    while time.monotonic() < give_up_at:
        views = [store.attempts.get(store.trials.get(one).attempt_id) for one in quiet]
        ages = [(datetime.now(UTC) - view.renewed_at).total_seconds() for view in views
                if view.renewed_at and view.state == "running"]  # fmt: skip
        oldest_s = max([oldest_s, *ages])
        view = store.attempts.get(store.trials.get(loud).attempt_id)
        if path is None and view.run:
            found = glob.glob("**/log", root_dir=scene.state, recursive=True)
            path = next((scene.state / one for one in found if view.run in one), None)
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
    return {
        "renewal": oldest_s,
        "slots": free_at - ended_at if free_at else float("inf"),
        "lines": 100 * there / lines,
        "marks": 100 * marked / max(1, len(from_host)),
    }


def _is_whole(path: Path, lines: int) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 200))
        return f" {lines - 1} ".encode() in file.read()


def _fired(scene: Any, trial_id: int) -> bool:
    return any(event["id"] == trial_id for event in scene.events())


def _loop(folder: Path, job: int) -> dict[str, float]:
    path = folder / f"{job}.turns"
    found = json.loads(path.read_text()) if path.exists() else {"cpu_s": 0.0, "wall_s": 0.0}
    return {"loop, CPU": 1e3 * found["cpu_s"], "loop": 1e3 * found["wall_s"]}


def _row(name: str, what: str, unit: str) -> Row:
    return Row(name=name, what=what, unit=unit, sides=dict.fromkeys(RATES, OURS))


BENCH = Bench(
    what="One rank that writes much log, ten quiet trials beside it",
    rows=(
        _row("renewal", "Age of the oldest lease of the quiet trials", "s"),
        _row("slots", "From the last byte of its log until its slots are free", "s"),
        _row("lines", "Its lines in the task log", "% of the lines"),
        _row("marks", "Its bytes that marks in the task log name as left out", "% of the bytes"),
        _row("loop, CPU", "Longest turn of the triggerer's event loop, CPU of its thread", "ms of CPU"),
        _row("loop", "The same, wall clock", "ms"),
    ),
    measure=measure,
    rounds=(3, 1),
)
