"""Environments of the programs that benchmarks are compared with.

Each has a folder of its own outside the repository, because peers pin packages that Airflow needs in other versions.
All have the PyTorch of this environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

#: Name of an environment -> its packages.
PEERS: dict[str, tuple[str, ...]] = {
    "training": ("torch", "accelerate==1.15.0", "lightning==2.6.6", "determined==0.38.1", "tensorboard==2.21.0"),
    "models": (
        "numpy==2.4.6", "scipy==1.17.1", "scikit-learn==1.9.1", "optuna==5.0.0", "syne-tune==0.16.0",
        "pydantic==2.14.3", "msgspec==0.22.0", "pyyaml==6.0.3",
    ),
    "dashboards": ("mlflow==3.17.2", "optuna==5.0.0", "optuna-dashboard==0.21.0"),
    "ray": ("torch", "ray[data,tune]==2.60.0", "pyarrow==26.0.1", "syne-tune==0.16.0", "optuna==5.0.0"),
}  # fmt: skip
INSTALL_S = 1800


class PeerError(Exception):
    """A peer cannot be installed, or has failed."""


def requirements(name: str) -> list[str]:
    """Return the packages of an environment, PyTorch in the version of this interpreter."""
    torch = importlib.metadata.version("torch").partition("+")[0]
    return [f"torch=={torch}" if one == "torch" else one for one in PEERS[name]]


def cache_folder() -> Path:
    """Return the folder for what later runs use again."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cached / "airflow-provider-dtrain" / "bench"


def folder_of(name: str) -> Path:
    """Return the folder of an environment. Other packages or another interpreter get another one."""
    key = json.dumps([sys.version, *requirements(name)])
    return cache_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


@cache
def python_of(name: str) -> str:
    """Return the interpreter of an environment, which is installed if it is missing.

    :raises PeerError: the installation failed
    """
    folder = folder_of(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        # Another run may be installing it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(name, folder)
    return str(folder / "bin" / "python")


def _install(name: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements(name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    if done.returncode:
        raise PeerError(f"{' '.join(PEERS[name])} cannot be installed: {last_line(done.stderr)}")
    (folder / "complete").touch()


@cache
def versions_of(name: str) -> dict[str, str]:
    """Return package -> version of an environment's own requirements."""
    packages = [one.partition("==")[0].partition("[")[0] for one in PEERS[name]]
    code = f"import importlib.metadata as m, json; print(json.dumps({{p: m.version(p) for p in {packages!r}}}))"
    done = subprocess.run([python_of(name), "-c", code], capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def last_line(text: str) -> str:
    """Return the last line of a program's messages."""
    return (text.strip().splitlines() or ["no message"])[-1]
