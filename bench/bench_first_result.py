"""From `git clone` to the first result on the screen, by `scripts/demo`, and the least that Airflow needs for a task.

Each round clones this repository and creates the environment from the caches of pip and uv. The limit runs in the same
environment, after this package has been uninstalled from it: `airflow standalone` with one DAG of one bare task.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.framework.measuring import Run
from bench.framework.rows import LIMIT, OURS, Bench, Goal, Row

ROOT = Path(__file__).resolve().parents[1]
DEMO, BARE = "scripts/demo", "airflow standalone, a bare task"
#: Signs on the screen that end a part, in their order.
SIGNS = {
    "environment": re.compile(r"Starting Airflow on "),
    "Airflow ready": re.compile(r"Running the DAG "),
    "task": re.compile(r"accuracy \d"),
}
DEMO_S, TASK_S, END_S = 1800.0, 600.0, 120.0
BARE_DAG = """from airflow.sdk import DAG, task

with DAG("bare", schedule=None):

    @task
    def nothing():
        print("done")

    nothing()
"""


def ours(folder: Path) -> dict[str, float]:
    """Return the seconds of each part. A clone with its environment stays in the folder."""
    began = time.monotonic()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True, timeout=DEMO_S)
    cloned = time.monotonic()
    command = [str(folder / DEMO)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    try:
        at = parts_of(((line, time.monotonic()) for line in process.stdout), cloned, lines)
        process.communicate(timeout=END_S)
    finally:
        process.terminate()
        process.wait(END_S)
    if process.returncode or set(at) != set(SIGNS):
        raise RuntimeError(f"scripts/demo ended with {process.returncode}:\n{''.join(lines)[-2000:]}")
    airflow = at["Airflow ready"] + at["task"]
    whole = cloned - began + at["environment"] + airflow
    return {"clone": cloned - began, **at, "Airflow and task": airflow, "first result": whole}


def parts_of(lines: Iterable[tuple[str, float]], began: float, seen: list[str]) -> dict[str, float]:
    """Return the seconds of each part, up to the last sign on the screen.

    :param lines: lines of the screen, with the time at which each came
    :param seen: gets the lines
    """
    found: dict[str, float] = {}
    signs = dict(SIGNS)
    for line, now in lines:
        seen.append(line)
        for part, sign in list(signs.items())[:1]:
            if sign.search(line):
                found[part], began = now - began, now
                del signs[part]
        if not signs:
            break
    return found


def bare(clone: Path, folder: Path) -> dict[str, float]:
    """Return the seconds until Airflow is ready, and of one bare task, in the environment of a clone."""
    sys.path.insert(0, str(ROOT / "scripts" / "tools"))
    from standalone import Standalone, free_ports

    class Bare(Standalone):
        """An Airflow with one DAG of one task."""

        bundles = json.dumps(
            [{"name": "dags-folder", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {}}]
        )

        def write_dags(self) -> None:
            self.dags.mkdir(parents=True, exist_ok=True)
            (self.dags / "bare.py").write_text(BARE_DAG)

    python = clone / ".demo" / "venv" / "bin" / "python"
    uninstall = [str(python), "-m", "pip", "uninstall", "-q", "-y", "airflow-provider-dtrain"]
    subprocess.run(uninstall, check=True, timeout=DEMO_S)
    folder.mkdir()
    began = time.monotonic()
    airflow = Bare(folder=folder, python=python, port=free_ports(28380))
    try:
        airflow.start()
        airflow.wait(lambda missing: None)
        deadline = time.monotonic() + TASK_S
        airflow.login(deadline)
        while not any(dag["dag_id"] == "bare" for dag in airflow.ask("GET", "/api/v2/dags", deadline=deadline)["dags"]):
            wait_until(deadline)
        airflow.ask("PATCH", "/api/v2/dags/bare", {"is_paused": False}, deadline=deadline)
        body = {"logical_date": None, "dag_run_id": "one"}
        airflow.ask("POST", "/api/v2/dags/bare/dagRuns", body, deadline=deadline)
        ready = time.monotonic()
        while (state := airflow.ask("GET", "/api/v2/dags/bare/dagRuns/one", deadline=deadline)["state"]) != "success":
            if state == "failed":
                raise RuntimeError(f"The bare task failed. The end of Airflow's output:\n{airflow.tail()}")
            wait_until(deadline)
        ended = time.monotonic()
    finally:
        airflow.stop()
    return {"Airflow ready": ready - began, "task": ended - ready, "Airflow and task": ended - began}


def wait_until(deadline: float) -> None:
    """Wait a moment.

    :raises RuntimeError: the deadline has passed
    """
    if time.monotonic() > deadline:
        raise RuntimeError(f"Airflow did not run a bare task within {TASK_S:.0f} s.")
    time.sleep(0.5)


def measure(run: Run) -> None:
    for number in range(run.rounds):
        clone, other = run.folder / f"clone{number}", run.folder / f"bare{number}"
        add(run, DEMO, ours(clone))
        if not run.is_quick:
            add(run, BARE, bare(clone, other))
        shutil.rmtree(clone)


def add(run: Run, side: str, values: Mapping[str, float]) -> None:
    """Add the parts of one side."""
    for row, value in values.items():
        run.add(row, side, value)


BOTH, ONE = {DEMO: OURS, BARE: LIMIT}, {DEMO: OURS}
BENCH = Bench(
    what="From git clone to the first result on the screen, with warm caches of packages",
    rows=(
        Row(
            name="first result",
            what="From git clone to the first accuracy on the screen",
            unit="s",
            sides=ONE,
            goals=(Goal(side=DEMO, at_most=60.0),),
        ),
        Row(name="clone", what="git clone of a local repository", unit="s", sides=ONE),
        Row(name="environment", what="Virtual environment, PyTorch, Airflow, this package", unit="s", sides=ONE),
        Row(name="Airflow ready", what="From its start until the DAG is triggered", unit="s", sides=BOTH, base=BARE),
        Row(
            name="task",
            what="From the trigger to the first accuracy, or to the end of the bare task",
            unit="s",
            sides=BOTH,
            base=BARE,
        ),
        Row(name="Airflow and task", what="The two parts before together", unit="s", sides=BOTH, base=BARE),
    ),
    measure=measure,
    rounds=(3, 1),
    missing=lambda: None if shutil.which("git") else "git is missing",
)
