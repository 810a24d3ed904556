"""Mapped trials through a real scheduler, beside Airflow's own tasks, Optuna and Ray Tune.

First script: from the trigger of the DAG run of a search to the first line of its first script, beside two tasks of
Airflow of which one depends on the other, and beside the first line of the first one of as many mapped tasks of Airflow
as the search has trials.

Search: 20 trials that sleep a second, on 2 slots, from the trigger of the DAG run to its end. Optuna starts a process
per trial and Ray Tune an actor, from the start of their interpreter to its end. In the second row each trial imports
PyTorch. In the third row a task runs ten of the trials.

Share: the same Airflow runs the same number of deferrable tasks that only wait 12 s, as long as the provider's trigger
waits before its first event. CPU seconds are those of all processes of Airflow, including ended ones, from /proc, and
of the process to which the triggerer is connected, which on a remote host is at the other end of SSH. Supervisors and
ranks are not counted. The time inside ``execute`` and ``execute_complete`` is measured in the tasks themselves. The
third side has tasks of 20 trials (``searcher.trials_per_task``).

With ``--quick`` there are only the first script and the first search, of an Airflow that has run nothing before.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from bench.framework.measuring import Run
from bench.framework.peers import PeerError
from bench.framework.rows import LIMIT, OURS, PEER, Bench, Goal, Row
from testbed.standalone import Standalone

HERE = Path(__file__).parent

HOST = "host"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Taken:
    """Cost of one DAG run."""

    state: str
    wall_s: float
    #: Component of Airflow -> CPU seconds.
    cpu_s: dict[str, float]

    @property
    def total_s(self) -> float:
        """CPU seconds of all components."""
        return sum(self.cpu_s.values())

    @property
    def airflow_s(self) -> float:
        """CPU seconds without the host's."""
        return self.total_s - self.cpu_s.get(HOST, 0.0)


def cpu_by_part(root: int) -> dict[str, float]:
    """Return component -> CPU seconds of a process's descendants, including ended ones."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b") ")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            seconds[int(entry.name)] = sum(int(field) for field in fields[11:15]) / TICKS
    found: dict[str, float] = {}
    for pid in seconds:
        part, is_host = pid, False
        while part and parents.get(part) != root:
            is_host = is_host or b"/supervisor/" in _words(part)
            part = parents.get(part, 0)
        if part:
            name = HOST if is_host else _part(part)
            found[name] = found.get(name, 0.0) + seconds[pid]
    return found


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


def _part(pid: int) -> str:
    words = _words(pid).decode(errors="replace")
    names = ("scheduler", "triggerer", "dag-processor", "api-server")
    return next((name for name in names if name in words or name.replace("-", "_") in words), "other")


def dag_run(airflow: Standalone, dag_id: str, count: int, per_task: int | None = None) -> Taken:
    """Return the cost of a DAG run with this number of trials.

    :param per_task: trials of a mapped task; None: the default of a configuration
    """
    before, began_at = cpu_by_part(airflow.pid), time.monotonic()
    run_id = airflow.trigger(dag_id, {"count": count, **({"per_task": min(per_task, count)} if per_task else {})})
    state = airflow.wait(dag_id, run_id, timeout_s=600 + 30 * count)
    assert state == "success", f"{dag_id}: {state}"
    wall_s, after = time.monotonic() - began_at, cpu_by_part(airflow.pid)
    return Taken(state, wall_s, {name: after[name] - before.get(name, 0.0) for name in sorted(after)})


def share(run: Run, airflow: Standalone, times: Path) -> None:
    """Add the rows of the provider's share."""
    count = 1000
    run.note(f"Share: {count} mapped tasks, local executor, SQLite.")

    def figures(dag_id: str, per_task: int | None = None) -> dict[str, float]:
        taken = dag_run(airflow, dag_id, count, per_task)
        return {"share": taken.wall_s, "share, CPU": taken.airflow_s, "share, CPU with host": taken.total_s}

    run.turns({WAITS: partial(figures, "bench_waits"), TRIALS: partial(figures, "bench_trials")}, rounds=1)
    noted = times.read_text()
    run.turns({SEVERAL: partial(figures, "bench_trials", 20)}, rounds=1)
    for phase, wall, cpu in (json.loads(line) for line in noted.splitlines()):
        run.add("operator", phase, wall)
        run.add("operator, CPU", phase, cpu)


def bare(airflow: Standalone) -> float:
    """Return the seconds from the trigger of a DAG run to the end of the second of its two tasks."""
    began_at = time.time()
    run_id = airflow.trigger("bench_bare")
    assert airflow.wait("bench_bare", run_id) == "success"
    return datetime.fromisoformat(airflow.task("bench_bare", run_id, "second")["end_date"]).timestamp() - began_at


def search(run: Run, airflow: Standalone, starts: Path) -> None:
    """Add the rows of searches."""
    count, python = run.size(20, 4), run.peer("ray")
    kinds = {"search": ("plain", "bench_search"), "search with torch": ("torch", "bench_search_torch")}
    first: dict[str, list[float]] = {"ours": [], BARE: [], BARE_MAPPED: []}

    def started(dag_id: str) -> tuple[float, float]:
        """Return the seconds of a DAG run, and those from its trigger to its first start."""
        starts.write_text("")
        began_at = time.time()
        wall_s = dag_run(airflow, dag_id, count).wall_s
        return wall_s, min(map(float, starts.read_text().split())) - began_at

    for row, (kind, dag_id) in kinds.items():
        if run.is_quick and kind == "torch":
            continue

        def ours(dag_id: str = dag_id, kind: str = kind) -> float:
            wall_s, first_s = started(dag_id)
            if kind == "plain":
                first["ours"].append(first_s)
                first[BARE].append(bare(airflow))
                first[BARE_MAPPED].append(started("bench_bare_mapped")[1])
            return 60 * count / wall_s

        def peer(name: str, kind: str = kind) -> float:
            began, command = time.monotonic(), [python, "-m", "bench.search_programs", name, str(count), kind]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900)
            if done.returncode:
                raise PeerError(done.stderr.strip()[-500:])
            return 60 * count / (time.monotonic() - began)

        peers = {"Optuna": partial(peer, "optuna"), "Ray Tune": partial(peer, "ray")} if python else {}
        run.turns({"ours": ours, **peers}, row)
        run.add(row, "2 slots without any gap", 120)
    for side, values in first.items():
        run.add("first script", side, *values)
    for side in (BARE, BARE_MAPPED):
        later = (ours_s - other_s for ours_s, other_s in zip(first["ours"], first[side], strict=True))
        run.add("first script, later", f"than {side}", *later)


def tasks_of_ten(run: Run, airflow: Standalone) -> None:
    """Add the row of a search whose tasks run ten trials each."""
    count = 20

    def in_tasks() -> float:
        return 60 * count / dag_run(airflow, "bench_search", count, 10).wall_s

    run.turns({"ours": in_tasks}, IN_TASKS)
    run.add(IN_TASKS, "2 slots without any gap", 120)


def measure(run: Run) -> None:
    home, dags, times, starts = (run.folder / name for name in ("home", "dags", "times", "starts"))
    for one in (home, dags, dags / "code"):
        one.mkdir()
    shutil.copy(HERE / "mapped_dags.py", dags)
    shutil.copy(HERE / "mapped_trial.py", dags / "code")
    times.touch()
    environment = {
        "BENCH_MAPPED_TIMES": str(times),
        "BENCH_MAPPED_STARTS": str(starts),
        # As installed: each task is a process, whose time would mostly be recompiling the package.
        "PYTHONDONTWRITEBYTECODE": "",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        "AIRFLOW__CORE__MAX_MAP_LENGTH": "1024",
        "AIRFLOW__CORE__PARALLELISM": "32",
        "AIRFLOW__DTRAIN__REMOTE_DIR": str(run.folder / "remote"),
    }
    airflow = Standalone(home, dags, environment)
    try:
        airflow.start()
        command = [sys.executable, "-m", "airflow", "dtrain", "hosts", "add", "local", "--slots", f"cpu:{SLOTS}"]
        subprocess.run(command, env=airflow.environment, check=True, capture_output=True, timeout=300)
        if run.is_quick:
            search(run, airflow, starts)
            return
        # The first runs include one-time work.
        for dag_id in ("bench_waits", "bench_search", "bench_bare", "bench_bare_mapped"):
            dag_run(airflow, dag_id, 1)
        times.write_text("")
        search(run, airflow, starts)
        tasks_of_ten(run, airflow)
        share(run, airflow, times)
    finally:
        airflow.stop()


SLOTS = 2
TRIALS, WAITS, SEVERAL = "trials", "tasks that only wait", "trials, 20 per task"
IN_TASKS = "search in tasks of ten"
BARE, BARE_MAPPED = "two dependent tasks", "as many mapped tasks"
SEARCH = {"ours": OURS, "Optuna": PEER, "Ray Tune": PEER, "2 slots without any gap": LIMIT}
SHARE = {TRIALS: OURS, WAITS: LIMIT, SEVERAL: OURS}
PHASES = {"execute": OURS, "execute_complete": OURS}
BENCH = Bench(
    what="Mapped trials in a real Airflow",
    rows=(
        Row(
            name="first script",
            what="From the trigger to the first script of a search, the end of two dependent tasks of Airflow, and the "
            "start of the first one of as many mapped tasks",
            unit="s",
            sides={"ours": OURS, BARE: LIMIT, BARE_MAPPED: LIMIT},
            base=BARE,
        ),
        Row(
            name="first script, later",
            what="The difference in each round",
            unit="s",
            sides={f"than {side}": OURS for side in (BARE, BARE_MAPPED)},
            goals=(Goal(side=f"than {BARE}", at_most=1.5),),
        ),
        Row(
            name="search",
            what="20 trials of a second on 2 slots, end to end",
            unit="trials/min",
            sides=SEARCH,
            base="Optuna",
            goals=(Goal(side="ours", at_least=40),),
        ),
        Row(
            name="search with torch",
            what="The same, each trial imports PyTorch; not with --quick, like all rows below",
            unit="trials/min",
            sides=SEARCH,
            base="Optuna",
            goals=(Goal(side="ours", at_least=1, of="Optuna"),),
        ),
        Row(
            name=IN_TASKS,
            what="20 trials of a second on 2 slots, ten per task",
            unit="trials/min",
            sides={"ours": OURS, "2 slots without any gap": LIMIT},
            base="2 slots without any gap",
        ),
        Row(
            name="share",
            what="1,000 trials that report one number",
            unit="s",
            sides=SHARE,
            base=WAITS,
            goals=(Goal(side=TRIALS, at_most=1.25, of=WAITS),),
        ),
        Row(name="share, CPU", what="CPU of Airflow", unit="s of CPU", sides=SHARE, base=WAITS),
        Row(name="share, CPU with host", what="With the host's process", unit="s of CPU", sides=SHARE, base=WAITS),
        Row(name="operator", what="The provider's code in a task", unit="s", sides=PHASES),
        Row(name="operator, CPU", what="The same", unit="s of CPU", sides=PHASES),
    ),
    measure=measure,
    rounds=(3, 1),
)
