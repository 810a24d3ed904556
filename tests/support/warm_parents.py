"""End of the warm parents that tests have left: they wait for the next launch of a program, which no test makes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from airflow_provider_dtrain.supervisor.machine.processes import has_name, read_arguments
from airflow_provider_dtrain.supervisor.names import WARM_NAME


def end_warm_parents(*folders: str | Path) -> None:
    """Kill the warm parents whose ``state_dir`` begins with one of these paths."""
    for name in os.listdir("/proc"):
        # The supervisors that it has forked have the same command line.
        if not name.isdigit() or not has_name(int(name), WARM_NAME):
            continue
        argv = read_arguments(int(name))
        state_dir = argv[argv.index("--state-dir") + 1] if "--state-dir" in argv else ""
        if state_dir.startswith(tuple(map(str, folders))):
            with suppress(ProcessLookupError):
                os.kill(int(name), signal.SIGKILL)
