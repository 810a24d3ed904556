"""Mapped trials that only report one number, through a real scheduler, and the provider's share of the time.

The same Airflow runs the same number of deferrable tasks that only wait 12 s, as long as the provider's trigger waits
before its first event. CPU seconds are those of all processes of Airflow, including ended ones, from /proc. The column
"host" is the process to which the triggerer is connected, which on a remote host is at the other end of SSH.
Supervisors and ranks are not counted. The provider's share is the extra time of the trials over the waits, divided by
the time of the trials: for wall-clock time, Airflow's CPU, and CPU including the host's. The time inside ``execute``
and ``execute_complete`` is measured in the tasks themselves. The wall-clock time is that from the trigger of the DAG
run to its end.

    python bench/bench_mapped.py [--count 1000] [--parallelism 6]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from engine_worlds import load_words  # noqa: E402

from testbed.standalone import Standalone  # noqa: E402

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


def run(airflow: Standalone, dag_id: str, count: int) -> Taken:
    """Return the cost of a DAG run with this number of mapped tasks."""
    before, began_at = cpu_by_part(airflow.pid), time.monotonic()
    run_id = airflow.trigger(dag_id, {"count": count})
    state = airflow.wait(dag_id, run_id, timeout_s=60 + 30 * count)
    wall_s, after = time.monotonic() - began_at, cpu_by_part(airflow.pid)
    return Taken(state, wall_s, {name: after[name] - before.get(name, 0.0) for name in sorted(after)})


def show(count: int, trials: Taken, waits: Taken, times: Path) -> None:
    """Print both runs, the provider's share, and the time inside its operators."""
    print(f"{count} mapped tasks, local executor, SQLite ({load_words()})")
    parts = sorted(trials.cpu_s)
    print(f"{'':8} {'state':8} {'wall s':>8} {'CPU s':>8} " + " ".join(f"{part:>14}" for part in parts))
    for name, one in (("trials", trials), ("waits", waits)):
        cells = " ".join(f"{one.cpu_s.get(part, 0.0):14.1f}" for part in parts)
        print(f"{name:8} {one.state:8} {one.wall_s:8.1f} {one.total_s:8.1f} {cells}")
    pairs = ((trials.wall_s, waits.wall_s), (trials.airflow_s, waits.airflow_s), (trials.total_s, waits.total_s))
    wall, cpu, total = ((mine - others) / mine for mine, others in pairs)
    print(f"provider's share: wall {wall:.1%}, CPU {cpu:.1%}, with the host's {total:.1%}   goal: <= 20 %")
    lines = [json.loads(line) for line in times.read_text().splitlines()]
    for phase in ("execute", "execute_complete"):
        walls, cpus = ([line[column] for line in lines if line[0] == phase] for column in (1, 2))
        if walls:
            middle = f"p50 {statistics.median(walls):6.3f} s wall {statistics.median(cpus):6.3f} s CPU"
            print(f"{phase:17} {len(walls):5}  {middle}")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--parallelism", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, dags, times = Path(folder) / "home", Path(folder) / "dags", Path(folder) / "times"
        for one in (home, dags, dags / "code"):
            one.mkdir()
        shutil.copy(HERE / "mapped_dags.py", dags)
        shutil.copy(HERE.parent / "tests" / "jobs" / "code" / "searched.py", dags / "code")
        times.touch()
        environment = {
            "BENCH_MAPPED_TIMES": str(times),
            # As installed: each task is a process, whose time would mostly be recompiling the package.
            "PYTHONDONTWRITEBYTECODE": "",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__CORE__PARALLELISM": str(options.parallelism),
            "AIRFLOW__CORE__MAX_MAP_LENGTH": str(max(1024, options.count)),
            "AIRFLOW__DTRAIN__REMOTE_DIR": str(Path(folder) / "remote"),
        }
        airflow = Standalone(home, dags, environment)
        try:
            airflow.start()
            # Warm-up: the first run includes one-time work such as registering this machine as a host.
            for dag_id in ("bench_waits", "bench_trials"):
                run(airflow, dag_id, 1)
            times.write_text("")
            waits = run(airflow, "bench_waits", options.count)
            trials = run(airflow, "bench_trials", options.count)
            show(options.count, trials, waits, times)
        finally:
            airflow.stop()


if __name__ == "__main__":
    main()
