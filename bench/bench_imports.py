"""Import time of every operator, sensor and trigger module, together and alone, after `import airflow.sdk`.

A DAG processor spends this time at every parse. Each number is the median of several fresh interpreters. The rows are
measured in turns, so that noise on the machine affects all of them.

    python bench/bench_imports.py [repetitions]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "airflow_provider_dtrain"
GOAL_S = 0.3
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
    return 0 if total < GOAL_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
