"""Import time of every operator, sensor and trigger module, together and alone, after `import airflow.sdk`.

A DAG processor spends this time at every parse. Each number is the median of several fresh interpreters. The rows are
measured in turns, so that noise on the machine affects all of them.

A second table has a whole trial of one rank that only calls `dtrain.init()`, beside the interpreter alone: a trial that
does not use torch spends this time at its start and its end. The CPU time includes Python's own modules.

    python bench/bench_imports.py [repetitions]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "airflow_provider_dtrain"
GOAL_S = 0.3
#: Largest part of the CPU time of a trial with torch that one without it may take.
GOAL_RATIO = 0.15
_INIT = "import airflow_provider_dtrain.train as dtrain\nwith dtrain.init(): pass"
TRIALS = {
    "interpreter alone": "pass",
    "Python's modules that the library uses": (
        "import dataclasses, hashlib, json, logging, pathlib, random, tempfile, threading, typing"
    ),
    "trial without torch": _INIT,
    "trial that imports torch after init": f"{_INIT}\nimport torch",
    "trial that imports torch before init": f"import torch\n{_INIT}",
}
HEAVY = ("torch", "paramiko", "optuna", "fastapi", "alembic")


def modules() -> list[str]:
    return sorted(
        f"airflow_provider_dtrain.{folder}.{file.stem}"
        for folder in ("operators", "sensors", "triggers")
        for file in (PACKAGE / folder).glob("[a-z]*.py")
    )


def measure(names: list[str]) -> tuple[float, str]:
    """Return the seconds to import the modules after airflow.sdk, and the heavy modules that they import."""
    code = (
        "import airflow.sdk, importlib, sys, time\n"
        "begin = time.perf_counter()\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(time.perf_counter() - begin)\n"
        f"print(','.join(name for name in {HEAVY!r} if name in sys.modules) or 'none')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    lines = done.stdout.splitlines()
    return float(lines[-2]), lines[-1]


def run(program: str) -> tuple[float, float]:
    """Return wall and CPU seconds of an interpreter that runs the program."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program], cwd=PACKAGE.parent, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{program!r} ended with status {status}")
    return time.perf_counter() - begin, used.ru_utime + used.ru_stime


def compare_trials(repetitions: int) -> bool:
    """Print the table of trials, and return whether the goal is met."""
    found: dict[str, list[tuple[float, float]]] = {label: [] for label in TRIALS}
    run(_INIT)
    for _ in range(repetitions):
        for label, program in TRIALS.items():
            found[label].append(run(program))
    print(f"\n{'trial of one rank':<50} {'median s':>9} {'best s':>8}  CPU s, load {os.getloadavg()[0]:.1f}")
    cpu = {label: statistics.median(one[1] for one in times) for label, times in found.items()}
    for label, times in found.items():
        wall = [one[0] for one in times]
        print(f"{label:<50} {statistics.median(wall):>9.3f} {min(wall):>8.3f}  {cpu[label]:.3f}")
    ratio = cpu["trial without torch"] / cpu["trial that imports torch before init"]
    met = ratio < GOAL_RATIO
    print(f"goal: CPU without torch < {GOAL_RATIO} of that with torch: {ratio:.3f}, {'met' if met else 'MISSED'}")
    return met


def main() -> int:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    names = modules()
    times: dict[str, list[float]] = {name: [] for name in ["all together", *names]}
    heavy: dict[str, str] = {}
    measure(names)
    for _ in range(repetitions):
        for label in times:
            seconds, heavy[label] = measure(names if label == "all together" else [label])
            times[label].append(seconds)
    print(f"{'import (after airflow.sdk)':<50} {'median s':>9} {'best s':>8}  heavy modules")
    for label, values in times.items():
        print(f"{label:<50} {statistics.median(values):>9.3f} {min(values):>8.3f}  {heavy[label]}")
    total = statistics.median(times["all together"])
    print(f"goal: all together < {GOAL_S} s: {'met' if total < GOAL_S else 'MISSED'}")
    starts = compare_trials(repetitions)
    return 0 if total < GOAL_S and starts else 1


if __name__ == "__main__":
    raise SystemExit(main())
