"""Start-up of ``dtrain`` beside ``airflow dtrain``: the same list, on a real API server.

The CPU time of ``dtrain`` is that of the client alone.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from bench.framework.measuring import Run
from bench.framework.rows import OURS, PEER, Bench, Goal, Row
from testbed.api_server import ApiServer
from testbed.seed.airflow_side import migrate_metadata
from testbed.stores import new_sqlite

BIN = Path(sys.executable).parent
HELP, LIST, AIRFLOW = "dtrain --help", "dtrain trials list", "airflow dtrain trials list"
WORDS = ("trials", "list", "-o", "json")
PROGRAMS = {
    HELP: [str(BIN / "dtrain"), "--help"],
    LIST: [str(BIN / "dtrain"), *WORDS],
    AIRFLOW: [str(BIN / "airflow"), "dtrain", *WORDS],
}


def measure(run: Run) -> None:
    server = ApiServer(run.folder / "home", new_sqlite(run.folder / "store" / "dtrain.db"))
    migrate_metadata(server.environment)
    try:
        server.start()
        login = {"DTRAIN_SERVER": server.base, "DTRAIN_TOKEN": server.token("viewer")}
        environment = {**server.environment, **login, "XDG_CONFIG_HOME": str(run.folder)}
        # The first round compiles modules.
        run.turns({name: partial(times_of, argv, environment) for name, argv in PROGRAMS.items()}, warm_up=1)
    finally:
        server.stop()


def times_of(argv: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Return wall and CPU seconds of a program."""
    begin, before = time.perf_counter(), cpu_s()
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=300)
    return {"command": time.perf_counter() - begin, "CPU": cpu_s() - before}


def cpu_s() -> float:
    """Return the CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


SIDES = {HELP: OURS, LIST: OURS, AIRFLOW: PEER}
BENCH = Bench(
    what="A command until its end",
    rows=(
        Row(
            name="command",
            what="Wall clock",
            unit="s",
            sides=SIDES,
            base=AIRFLOW,
            goals=(Goal(side=LIST, at_most=0.3),),
        ),
        Row(name="CPU", what="CPU time of the client", unit="s of CPU", sides=SIDES, base=AIRFLOW),
    ),
    measure=measure,
    rounds=(7, 2),
)
