"""Virtual environments of scripts/demo and scripts/test: created once, reused until their inputs change."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import borrow
from installers import Installer, SetupError, step

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
TORCH = "torch==2.13.0"
#: Installed without dependencies. It needs only PyTorch, of which pip would fetch a second copy.
ON_TORCH = "pytorch-optimizer"
#: Extra -> a package that is installed without its dependencies, most of which are not used here.
ALONE = {"dev": "syne-tune==0.16.0"}
FREE_BYTES = 3 * 1024**3
#: Input of an environment -> reason for recreating the environment when that input has changed.
CHANGED = {
    "folder": "the repository was moved",
    "pyproject": "pyproject.toml changed",
    "version": "the version of the package changed",
    "constraints": "scripts/constraints.txt changed",
    "steps": "the steps of the set-up changed",
    "python": "another Python was requested",
    "torch": "--torch-from names another PyTorch",
}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Specification of an environment."""

    folder: Path
    extras: Sequence[str]
    #: Interpreter whose torch is reused; None: pip installs torch.
    torch_from: Path | None = None

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def mark(self) -> Path:
        """Marker file of a finished set-up. It holds the inputs of the environment."""
        return self.folder / ".installed"

    def inputs(self, base: Path) -> dict[str, str]:
        """Return the inputs that determine the installed packages, by the names in :data:`CHANGED`."""
        steps = "\n".join((TORCH, ON_TORCH, *ALONE.values(), *self.extras))
        return {
            "folder": str(self.folder),
            "pyproject": digest(json.dumps(requirements(), sort_keys=True)),
            "version": digest((ROOT / "airflow_provider_dtrain" / "__init__.py").read_text()),
            "constraints": digest(CONSTRAINTS.read_text()),
            "steps": digest(steps),
            "python": f"{version_of(base)} {os.path.realpath(base)}",
            "torch": str(self.torch_from or ""),
        }


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def requirements() -> dict[str, object]:
    """Return the parts of pyproject.toml that determine the installed packages, without the linters' settings."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {name: document[name] for name in ("build-system", "project")}


def version_of(python: Path) -> str:
    """Return the version of an interpreter, e.g. ``3.11.7``."""
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        return platform.python_version()
    code = "import platform; print(platform.python_version())"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def ensure(wanted: Wanted) -> Path:
    """Return the interpreter of the wanted environment, which is created when necessary.

    :raises SetupError: the environment cannot be created
    """
    torch = borrow.look(wanted.torch_from) if wanted.torch_from else None
    base = Path(torch.base_python) if torch else Path(getattr(sys, "_base_executable", None) or sys.executable)
    inputs = wanted.inputs(base)
    reason = why_again(wanted, inputs)
    if reason is None:
        print(f"Using the environment in {shown(wanted.folder)}.", flush=True)
        return wanted.python
    announce(wanted, torch, reason)
    install(wanted, torch, base)
    wanted.mark.write_text(json.dumps(inputs, indent=1))
    return wanted.python


def why_again(wanted: Wanted, inputs: Mapping[str, str]) -> str | None:
    """Return the reason for creating the environment, None if it is up to date, "" if there is none yet.

    Another interpreter or PyTorch counts only when the caller named it: otherwise the environment keeps its own.
    """
    if not wanted.folder.exists():
        return ""
    if not wanted.mark.exists():
        return "its set-up did not finish"
    try:
        made_from = dict(json.loads(wanted.mark.read_text()))
    except ValueError:
        return "an older version of this script created it"
    named = {"python": bool(os.environ.get("PYTHON") or wanted.torch_from), "torch": bool(wanted.torch_from)}
    for name, words in CHANGED.items():
        if named.get(name, True) and made_from.get(name) != inputs[name]:
            return words
    return None if runs(wanted.python) else "its interpreter does not start, or lacks torch or Airflow"


def runs(python: Path) -> bool:
    """Return whether the interpreter starts and has torch and Airflow."""
    code = "from importlib.util import find_spec as f; raise SystemExit(not (f('torch') and f('airflow')))"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, timeout=120, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def announce(wanted: Wanted, torch: borrow.Torch | None, reason: str) -> None:
    """Print the downloads and their duration.

    :raises SetupError: the disk has too little free space
    """
    packages = len([line for line in CONSTRAINTS.read_text().splitlines() if line and line[0] != "#"])
    again = f"Recreating {shown(wanted.folder)} because {reason}." if reason else f"Setting up {shown(wanted.folder)}."
    print(f"{again}\nThis takes 1 to 3 minutes, once; later runs reuse it. Downloads, unless cached:")
    print(f"  - Airflow and its dependencies, about {packages} packages: 150 MB")
    if torch:
        print(f"  - no PyTorch: torch {torch.version} of {wanted.torch_from} is used")
    else:
        print(f"  - PyTorch ({TORCH}): 200 MB as a CPU build, 3 GB with the CUDA libraries")
        print("    (--torch-from /path/to/python uses a PyTorch that is already on this machine)")
    sys.stdout.flush()
    wanted.folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(wanted.folder.parent).free
    if free < FREE_BYTES:
        raise SetupError(
            f"{wanted.folder.parent} must have {FREE_BYTES / 1024**3:.0f} GiB free, got {free / 1024**3:.1f} GiB. "
            "Free some space, or move the repository to a larger disk."
        )


def clear(wanted: Wanted, base: Path) -> None:
    """Remove the environment's folder.

    :raises SetupError: it is not a virtual environment, or holds the interpreter that would create the new one
    """
    if not wanted.folder.exists():
        return
    if not (wanted.folder / "pyvenv.cfg").exists() and any(wanted.folder.iterdir()):
        raise SetupError(f"{wanted.folder} must be absent or a virtual environment, but is neither. Move it elsewhere.")
    if Path(os.path.abspath(base)).is_relative_to(wanted.folder):
        raise SetupError(
            f"{wanted.folder} must be recreated, but the Python that would do it, {base}, lies in it. "
            "Name another Python: PYTHON=/path/to/python3.11"
        )
    shutil.rmtree(wanted.folder)


def install(wanted: Wanted, torch: borrow.Torch | None, base: Path) -> None:
    """Create the environment from scratch. The next call removes an unfinished one."""
    log = wanted.folder.parent / f"{wanted.folder.name.lstrip('.')}-install.log"
    log.write_text("")
    clear(wanted, base)
    step("creating the environment", [base, "-m", "venv", wanted.folder], log)
    installer = Installer(wanted.python, CONSTRAINTS, log)
    installer.probe(next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("iniconfig==")))
    target = f"{ROOT}[{','.join(wanted.extras)}]" if wanted.extras else str(ROOT)
    with installer.torch_beside(TORCH) if torch is None else nullcontext():
        # Airflow's processes start together, and each would compile the same modules.
        installer.install("installing Airflow and this package", "--compile", "-e", target)
    for name in (ON_TORCH, *(ALONE[extra] for extra in wanted.extras if extra in ALONE)):
        installer.install(f"installing {name}", "--no-deps", name)
    if torch is not None:
        borrow.link(torch, wanted.python)


def shown(path: Path) -> str:
    """Return the path as the user would type it in the repository's root."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
