"""The machine of a run, and the load that other processes put on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.framework.rows import FOLDER

PACKAGES = ("apache-airflow", "torch", "sqlalchemy", "paramiko", "optuna", "numpy", "pyarrow")
TICKS = os.sysconf("SC_CLK_TCK")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def description() -> dict[str, str]:
    """Return what a figure depends on, by name."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    versions = {name: version for name in PACKAGES if (version := version_of(name))}
    return {
        "processor": f"{model.partition(':')[2].strip() or platform.machine()}, {cores()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        **versions,
        "revision": revision(),
        "at": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def version_of(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def revision() -> str:
    """Return the commit that is measured, with a mark if files differ from it."""
    command = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


@dataclass(frozen=True)
class Usage:
    """CPU seconds since the start of the machine, of all processes and of a process with its descendants."""

    at: float
    all_s: float
    own_s: float

    def others_since(self, earlier: Usage) -> float:
        """Return the part of the cores that other processes used since then, from 0 to 1."""
        spent = (self.all_s - earlier.all_s) - (self.own_s - earlier.own_s)
        return min(1.0, max(0.0, spent / max(self.at - earlier.at, 1e-3) / (os.cpu_count() or 1)))


def usage(pid: int | None = None) -> Usage:
    """Return the usage so far. Time that a hypervisor gives to other machines counts as that of other processes.

    :param pid: the process whose descendants do not count as others, by default this one
    """
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = fields
    root = psutil.Process(pid)
    own = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.Error:
            continue
        # Children that have ended and were waited for are part of their parent.
        own += used.user + used.system + used.children_user + used.children_system
    return Usage(time.monotonic(), (user + nice + system + irq + softirq + steal) / TICKS, own)


def load_of_others(seconds: float = 1.0) -> float:
    """Return the part of the cores that other processes use now."""
    before = usage()
    time.sleep(seconds)
    return usage().others_since(before)
