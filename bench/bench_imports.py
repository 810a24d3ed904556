"""Import time of the modules that DAG files need, and CPU time of a trial that does not use PyTorch.

A DAG processor spends the time of the imports at every parse. Each value is that of a fresh interpreter. The trial has
one rank and only calls `dtrain.init()`. The CPU time includes Python's own modules.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, Bench, Goal, Row

PACKAGE = Path(__file__).resolve().parents[1] / "airflow_provider_dtrain"
LIBRARY = "Python's modules that the library uses"
BARE, WITHOUT, WITH = "interpreter alone", "trial without torch", "trial that imports torch before init"
_INIT = "import airflow_provider_dtrain.train as dtrain\nwith dtrain.init(): pass"
TRIALS = {
    BARE: "pass",
    LIBRARY: ("import dataclasses, hashlib, json, logging, pathlib, random, tempfile, threading, typing"),
    WITHOUT: _INIT,
    "trial that imports torch after init": f"{_INIT}\nimport torch",
    WITH: f"import torch\n{_INIT}",
}
HEAVY = ("torch", "paramiko", "optuna", "scipy", "fastapi", "alembic")


def modules() -> list[str]:
    return sorted(
        f"airflow_provider_dtrain.{folder}.{file.stem}"
        for folder in ("operators", "sensors", "triggers")
        for file in (PACKAGE / folder).glob("[a-z]*.py")
    )


def imports(names: list[str]) -> tuple[float, str]:
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


def trial(program: str) -> dict[str, float]:
    """Return wall and CPU seconds of an interpreter that runs the program."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program], cwd=PACKAGE.parent, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{program!r} ended with status {status}")
    return {"trial, CPU": used.ru_utime + used.ru_stime, "trial": time.perf_counter() - begin}


def measure(run: Run) -> None:
    names = modules()
    run.note(f"Imports of {len(names)} modules. Heavy packages among them: {imports(names)[1]}.")
    run.turns({TOGETHER: lambda: imports(names)[0]}, "import")
    run.turns({label: partial(trial, program) for label, program in TRIALS.items()}, warm_up=1)


TOGETHER = "operators, sensors and triggers"
SIDES = {name: LIMIT if name in (BARE, LIBRARY) else OURS for name in TRIALS}
BENCH = Bench(
    what="Imports of DAG files and of trials",
    rows=(
        Row(
            name="import",
            what="All modules that a DAG file may import, after airflow.sdk",
            unit="s",
            sides={TOGETHER: OURS},
            goals=(Goal(side=TOGETHER, at_most=0.3),),
        ),
        Row(
            name="trial, CPU",
            what="A whole rank that only calls dtrain.init()",
            unit="s of CPU",
            sides=SIDES,
            base=WITH,
            goals=(Goal(side=WITHOUT, at_most=0.15, of=WITH),),
        ),
        Row(name="trial", what="The same, wall clock", unit="s", sides=SIDES, base=WITH),
    ),
    measure=measure,
    rounds=(7, 2),
)
