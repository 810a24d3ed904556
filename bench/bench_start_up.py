"""Start-up of ``dtrain`` beside ``airflow dtrain``: wall and CPU time of the same list, on a real API server.

``python -m bench.bench_start_up [--rounds 7]``. Each number is a median; the programs run in turns. The CPU time of
``dtrain`` is that of the client alone.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from testbed.api_server import ApiServer
from testbed.seed.airflow_side import migrate_metadata
from testbed.stores import new_sqlite

GOAL_S = 0.3
BIN = Path(sys.executable).parent
LIST = ("trials", "list", "-o", "json")
PROGRAMS = {
    "dtrain --help": [str(BIN / "dtrain"), "--help"],
    "dtrain trials list": [str(BIN / "dtrain"), *LIST],
    "airflow dtrain trials list": [str(BIN / "airflow"), "dtrain", *LIST],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        server = ApiServer(Path(name, "home"), new_sqlite(Path(name, "store", "dtrain.db")))
        migrate_metadata(server.environment)
        try:
            server.start()
            login = {"DTRAIN_SERVER": server.base, "DTRAIN_TOKEN": server.token("viewer"), "XDG_CONFIG_HOME": name}
            found = measured({**server.environment, **login}, options.rounds)
        finally:
            server.stop()
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"{'program':<28} {'wall s':>7} {'best':>6} {'CPU s':>6}")
    for label, times in found.items():
        wall = [one[0] for one in times]
        cpu = statistics.median(one[1] for one in times)
        print(f"{label:<28} {statistics.median(wall):>7.2f} {min(wall):>6.2f} {cpu:>6.2f}")
    total = statistics.median(one[0] for one in found["dtrain trials list"])
    print(f"goal: dtrain trials list < {GOAL_S} s: {'met' if total < GOAL_S else 'MISSED'}")
    return 0 if total < GOAL_S else 1


def measured(environment: dict[str, str], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return wall and CPU seconds of each run of each program. The first round, which compiles modules, is left out."""
    found: dict[str, list[tuple[float, float]]] = {label: [] for label in PROGRAMS}
    for number in range(rounds + 1):
        for label, argv in PROGRAMS.items():
            begin, before = time.perf_counter(), cpu_s()
            subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=120)
            if number:
                found[label].append((time.perf_counter() - begin, cpu_s() - before))
    return found


def cpu_s() -> float:
    """Return the CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
