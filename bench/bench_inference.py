"""Throughput of a batch inference beside a bare loop, a static division of the data, and Ray Data.

    python -m bench.bench_inference [--rows 100000] [--hidden 1024] [--batch 256] [--slots 2] [--ray PYTHON]

All read the same Parquet file, use the same model with one thread per process, and write Parquet. Rows per second count
from the first batch to the last write; start-up is the rest of the wall time. Memory is the largest resident set of one
process. "Bare loops at once" are independent bare loops that each compute the whole file: the most that this machine's
cores and memory give to so many processes. ``--ray`` names an interpreter that has Ray and PyTorch. Rounds alternate,
and the median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

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
        raise SystemExit(f"{' '.join(command)} failed:\n{output[-3000:]}")
    return output, time.perf_counter() - began, largest[0]


def _watch(pid: int, largest: list[float], over: threading.Event) -> None:
    while not over.wait(0.2):
        try:
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                largest[0] = max(largest[0], one.memory_info().rss / 2**20)
        except psutil.Error:
            continue


class Bench:
    """The programs, and the folder that they work in."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.input = folder / "input.parquet"
        write_input(self.input, options.rows)
        (folder / "predictor.py").write_text(PROCESSOR)

    def measure(self, kind: str, slots: int, slow: float = 1.0) -> Figures:
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "BENCH_HIDDEN": str(self.options.hidden),
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
        options = self.options
        python = options.ray if kind == "ray" else sys.executable
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(slots)]
        if kind == "dtrain":
            section = {
                "processor": "predictor:Predictor",
                "inputs": {"path": str(self.input)},
                "outputs": {"path": str(output), "columns": ["id"]},
                "batch_size": options.batch,
            }
            config = self.folder / "config.json"
            config.write_text(json.dumps({"inference": section}))
            program = ["-m", "airflow_provider_dtrain.train.inference", "--config", str(config)]
        else:
            program = [
                "-m", "bench.inference_loops", kind, "--input", str(self.input), "--output", str(output),
                "--hidden", str(options.hidden), "--batch", str(options.batch), "--slots", str(slots),
            ]  # fmt: skip
        several = slots > 1 and kind in {"dtrain", "static"}
        return [python, *(ranks if several else []), *program]

    def _rows_and_seconds(self, kind: str, text: str) -> tuple[float, float]:
        if kind != "dtrain":
            found = json.loads(next(line for line in text.splitlines() if line.startswith('{"rows"')))
            return found["rows"], found["seconds"]
        rows, rate = re.findall(r"([\d,]+) rows \(100%\), ([\d,]+) rows/s", text)[-1]
        count = float(rows.replace(",", ""))
        return count, count / float(rate.replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ray", metavar="PYTHON", help="interpreter that has Ray and PyTorch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        table(Bench(options, Path(folder)), options)


def table(bench: Bench, options: argparse.Namespace) -> None:
    """Measure and print."""
    cases: list[tuple[str, str, int, float]] = [
        ("bare loop", "bare", 1, 1.0),
        ("dtrain", "dtrain", 1, 1.0),
        *([("Ray Data", "ray", 1, 1.0)] if options.ray else []),
        ("bare loops at once", "bare", options.slots, 1.0),
        ("static shares", "static", options.slots, 1.0),
        ("dtrain", "dtrain", options.slots, 1.0),
        *([("Ray Data", "ray", options.slots, 1.0)] if options.ray else []),
        ("static shares, rank 0 4x slower", "static", options.slots, 4.0),
        ("dtrain, rank 0 4x slower", "dtrain", options.slots, 4.0),
    ]
    found: dict[int, list[Figures]] = {index: [] for index in range(len(cases))}
    for _ in range(options.rounds):
        for index, (_, kind, slots, slow) in enumerate(cases):
            found[index].append(bench.measure(kind, slots, slow))
    load = os.getloadavg()[0]
    print(f"{options.rows:,} rows, hidden {options.hidden}, batch {options.batch}, load {load:.1f}")
    print("| program | processes | rows/s | to the bare loop | start-up s | memory MiB |")
    print("|---|---|---|---|---|---|")
    base = statistics.median(one.rows_per_s for one in found[0])
    for index, (name, _, slots, _) in enumerate(cases):
        rate, startup, memory = (
            statistics.median(getattr(one, field) for one in found[index])
            for field in ("rows_per_s", "startup_s", "memory_mib")
        )
        print(f"| {name} | {slots} | {rate:,.0f} | {rate / base:.2f} | {startup:.1f} | {memory:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
