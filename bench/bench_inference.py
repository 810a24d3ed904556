"""Throughput of a batch inference beside a bare loop, a static division of the data, and Ray Data.

All read the same Parquet file, use the same model with one thread per process, and write Parquet. Rows per second count
from the first batch to the last write; start-up is the rest of the wall time. Memory is the largest resident set of one
process. "Bare loops at once" are independent bare loops that each compute the whole file: the most that this machine's
cores and memory give to so many processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from bench.framework.measuring import Run
from bench.framework.peers import PeerError
from bench.framework.rows import LIMIT, OURS, PEER, Bench, Goal, Row

ROOT = Path(__file__).parents[1]
PROCESSOR = """
import os, time
import airflow_provider_dtrain.train as dtrain
from bench.inference_loops import model, predict, slow_down

class Predictor(dtrain.BatchProcessor):
    def setup(self, ctx):
        self.rank = ctx.rank
        self.net = ctx.prepare_model(model(int(os.environ["BENCH_HIDDEN"])))

    def process_batch(self, batch, batch_idx):
        began = time.perf_counter()
        result = predict(self.net, batch["pixels"])
        slow_down(self.rank, began)
        return result
"""


HIDDEN, BATCH, SLOTS = 1024, 256, 2


@dataclass(frozen=True)
class Figures:
    """Result of one program."""

    rows_per_s: float
    startup_s: float
    memory_mib: float


def write_input(path: Path, rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    pixels = np.random.default_rng(0).random((rows, 64), dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), 64)
    pq.write_table(pa.table({"id": np.arange(rows), "pixels": column}), path, row_group_size=16_384)


def run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> tuple[str, float, float]:
    """Return the output of a program, its wall time, and the largest resident set of one of its processes in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    largest = [0.0]
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(process.pid, largest, over))
    watch.start()
    output, _ = process.communicate(timeout=1800)
    over.set()
    watch.join()
    if process.returncode:
        failure = RuntimeError if command[0] == sys.executable else PeerError
        raise failure(f"{' '.join(command)} failed:\n{output[-3000:]}")
    return output, time.perf_counter() - began, largest[0]


def _watch(pid: int, largest: list[float], over: threading.Event) -> None:
    while not over.wait(0.2):
        try:
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                largest[0] = max(largest[0], one.memory_info().rss / 2**20)
        except psutil.Error:
            continue


class Programs:
    """The programs, and the folder that they work in."""

    def __init__(self, rows: int, ray: str | None, folder: Path) -> None:
        self.ray, self.folder = ray, folder
        self.input = folder / "input.parquet"
        write_input(self.input, rows)
        (folder / "predictor.py").write_text(PROCESSOR)

    def measure(self, kind: str, slots: int, slow: float = 1.0) -> Figures:
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "BENCH_HIDDEN": str(HIDDEN),
            "BENCH_SLOW": str(slow), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        output = self.folder / f"output-{kind}"
        shutil.rmtree(output, ignore_errors=True)
        if kind == "bare" and slots > 1:
            return self._at_once(slots, environment)
        text, wall_s, memory = run(self._command(kind, slots, output), self.folder, environment)
        rows, seconds = self._rows_and_seconds(kind, text)
        return Figures(rows / seconds, wall_s - seconds, memory)

    def _at_once(self, count: int, environment: dict[str, str]) -> Figures:
        """Return the sum of the rates of several bare loops that run at the same time."""

        def one(number: int) -> Figures:
            command = self._command("bare", 1, self.folder / f"output-bare-{number}")
            text, wall_s, memory = run(command, self.folder, environment)
            rows, seconds = self._rows_and_seconds("bare", text)
            return Figures(rows / seconds, wall_s - seconds, memory)

        with ThreadPoolExecutor(count) as threads:
            loops = list(threads.map(one, range(count)))
        return Figures(
            sum(loop.rows_per_s for loop in loops),
            max(loop.startup_s for loop in loops),
            max(loop.memory_mib for loop in loops),
        )

    def _command(self, kind: str, slots: int, output: Path) -> list[str]:
        python = self.ray if kind == "ray" and self.ray else sys.executable
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(slots)]
        if kind == "dtrain":
            section = {
                "processor": "predictor:Predictor",
                "inputs": {"path": str(self.input)},
                "outputs": {"path": str(output), "columns": ["id"]},
                "batch_size": BATCH,
            }
            config = self.folder / "config.json"
            config.write_text(json.dumps({"inference": section}))
            program = ["-m", "airflow_provider_dtrain.train.inference", "--config", str(config)]
        else:
            program = [
                "-m", "bench.inference_loops", kind, "--input", str(self.input), "--output", str(output),
                "--hidden", str(HIDDEN), "--batch", str(BATCH), "--slots", str(slots),
            ]  # fmt: skip
        several = slots > 1 and kind in {"dtrain", "static"}
        return [python, *(ranks if several else []), *program]

    def _rows_and_seconds(self, kind: str, text: str) -> tuple[float, float]:
        if kind != "dtrain":
            found = json.loads(next(line for line in text.splitlines() if line.startswith('{"rows"')))
            return found["rows"], found["seconds"]
        rows, rate = re.findall(r"([\d,]+) rows(?: \(\d+%\))?, ([\d,]+) rows/s", text)[-1]
        count = float(rows.replace(",", ""))
        return count, count / float(rate.replace(",", ""))


def figures(programs: Programs, row: str, kind: str, slots: int, slow: float) -> dict[str, float]:
    """Return row -> figure of one program."""
    found = programs.measure(kind, slots, slow)
    return {row: found.rows_per_s, f"start-up, {row}": found.startup_s, f"memory, {row}": found.memory_mib}


def measure(run: Run) -> None:
    rows = run.size(100_000, 10_000)
    programs = Programs(rows, run.peer("ray"), run.folder)
    run.note(f"{rows:,} rows, hidden {HIDDEN}, batch {BATCH}, {SLOTS} processes.")
    for row, (slots, slow, sides) in CASES.items():
        if run.is_quick and slow > 1:
            continue
        run.turns(
            {
                side: partial(figures, programs, row, kind, slots, slow)
                for side, (kind, _) in sides.items()
                # Ray takes most of the CPU time of a quick run.
                if kind != "ray" or (programs.ray and not (run.is_quick and slots > 1))
            }
        )


CASES = {
    "1 process": (1, 1.0, {"bare loop": ("bare", LIMIT), "ours": ("dtrain", OURS), "Ray Data": ("ray", PEER)}),
    "2 processes": (
        SLOTS, 1.0,
        {
            "bare loops at once": ("bare", LIMIT), "static shares": ("static", PEER), "ours": ("dtrain", OURS),
            "Ray Data": ("ray", PEER),
        },
    ),
    "rank 0 4x slower": (SLOTS, 4.0, {"static shares": ("static", PEER), "ours": ("dtrain", OURS)}),
}  # fmt: skip
BASES = {"1 process": "bare loop", "2 processes": "bare loops at once", "rank 0 4x slower": "static shares"}
GOALS = {"1 process": 0.97, "2 processes": 0.95, "rank 0 4x slower": 1.0}
BENCH = Bench(
    what="Batch inference over one Parquet file",
    rows=tuple(
        Row(
            name=prefix + row,
            what=what,
            unit=unit,
            sides={side: kind for side, (_, kind) in sides.items()},
            base=BASES[row],
            goals=() if prefix else (Goal(side="ours", at_least=GOALS[row], of=BASES[row]),),
        )
        for row, (_, _, sides) in CASES.items()
        for prefix, what, unit in (
            ("", "From the first batch to the last write", "rows/s"),
            ("start-up, ", "The rest of the wall time", "s"),
            ("memory, ", "Largest resident set of one process", "MiB"),
        )
    ),
    measure=measure,
    rounds=(3, 1),
)
