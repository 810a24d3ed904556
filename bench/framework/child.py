"""One benchmark in a process of its own, started by ``python -m bench``. It writes its values as lines of JSON."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from airflow_provider_dtrain.supervisor.machine.processes import LIBC, PR_SET_PDEATHSIG
from bench.framework import rows
from bench.framework.measuring import Run


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    # A shell starts programs in the background with this signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    with options.result.open("a") as output, tempfile.TemporaryDirectory(prefix=f"{options.name}-") as folder:
        bench = rows.load(options.name)
        run = Run(rounds=options.rounds, is_quick=options.quick, folder=Path(folder), output=output)
        bench.measure(run)


if __name__ == "__main__":
    sys.exit(main())
