"""The virtual environments of scripts/demo and scripts/test: made once, used again while the lock fits."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import borrow

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
TORCH = "torch==2.13.0"
#: Installed alone. The first needs PyTorch and nothing else: pip would fetch a second PyTorch for it.
ON_TORCH = "pytorch-optimizer"
#: Extra -> a package that asks for far more than what is used of it.
ALONE = {"dev": "syne-tune==0.16.0"}
FREE_BYTES = 3 * 1024**3

NETWORK_SIGNS = re.compile(
    r"name resolution|Name or service not known|getaddrinfo|Failed to establish|Connection refused|timed out|"
    r"ProxyError|Network is unreachable|Could not fetch URL|SSLError|NewConnectionError|Connection (reset|broken)",
    re.IGNORECASE,
)


class SetupError(Exception):
    """The environment cannot be made; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an environment must hold."""

    folder: Path
    extras: Sequence[str]
    #: Interpreter whose torch is reused; None = installed by pip.
    torch_from: Path | None = None

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    def stamp(self, base: Path) -> str:
        """Return the hash of everything that decides what is installed."""
        steps = (TORCH, ON_TORCH, *ALONE.values())
        parts = [str(ROOT), str(base), sys.version, *steps, str(self.torch_from), *self.extras]
        digest = hashlib.sha256("\n".join(parts).encode())
        for source in (CONSTRAINTS, ROOT / "pyproject.toml"):
            digest.update(source.read_bytes())
        return digest.hexdigest()


def ensure(wanted: Wanted) -> Path:
    """Return the interpreter of an environment that holds what is wanted.

    :raises SetupError: it cannot be made
    """
    torch = borrow.look(wanted.torch_from) if wanted.torch_from else None
    base = Path(torch.base_python) if torch else Path(sys.executable)
    stamp = wanted.stamp(base)
    mark = wanted.folder / ".installed"
    if mark.exists() and mark.read_text() == stamp and runs(wanted.python):
        print(f"Using the environment in {shown(wanted.folder)}.", flush=True)
        return wanted.python
    announce(wanted, torch)
    install(wanted, torch, base)
    mark.write_text(stamp)
    return wanted.python


def runs(python: Path) -> bool:
    """Return whether the interpreter starts and has torch and Airflow."""
    code = "from importlib.util import find_spec as f; raise SystemExit(not (f('torch') and f('airflow')))"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def announce(wanted: Wanted, torch: borrow.Torch | None) -> None:
    """Say what will be downloaded, and refuse when the disk is too small for it."""
    packages = len([line for line in CONSTRAINTS.read_text().splitlines() if line and line[0] != "#"])
    print(f"Setting up {shown(wanted.folder)} (once; later runs use it again). Downloads, unless pip has them cached:")
    print(f"  - Airflow and its companions, about {packages} packages: 150 MB")
    if torch:
        print(f"  - no PyTorch: {torch.version} of {wanted.torch_from} is used")
    else:
        print(f"  - PyTorch ({TORCH}): 200 MB as a CPU build, 3 GB with the CUDA libraries")
        print("    (--torch-from /path/to/python uses a PyTorch that is already on this machine)")
    sys.stdout.flush()
    wanted.folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(wanted.folder.parent).free
    if free < FREE_BYTES:
        raise SetupError(
            f"{wanted.folder.parent} has {free / 1024**3:.1f} GiB free, {FREE_BYTES / 1024**3:.0f} GiB are needed. "
            "Free some space, or move the repository to a larger disk."
        )


def install(wanted: Wanted, torch: borrow.Torch | None, base: Path) -> None:
    """Make the environment from nothing; what is half made is removed by the next call."""
    log = wanted.folder.parent / f"{wanted.folder.name.lstrip('.')}-install.log"
    log.write_text("")
    if wanted.folder.exists():
        if not (wanted.folder / "pyvenv.cfg").exists() and any(wanted.folder.iterdir()):
            raise SetupError(f"{wanted.folder} is in the way: it is no virtual environment. Move it elsewhere.")
        shutil.rmtree(wanted.folder)
    step("making the environment", [base, "-m", "venv", wanted.folder], log)
    pip = [wanted.python, "-m", "pip"]
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    probe(pip, options, wanted.folder, log)
    if torch is None:
        step("installing PyTorch", [*pip, "install", *options, "-c", CONSTRAINTS, TORCH], log)
    target = f"{ROOT}[{','.join(wanted.extras)}]" if wanted.extras else str(ROOT)
    step("installing Airflow and this package", [*pip, "install", *options, "-c", CONSTRAINTS, "-e", target], log)
    for name in (ON_TORCH, *(ALONE[extra] for extra in wanted.extras if extra in ALONE)):
        step(f"installing {name}", [*pip, "install", *options, "-c", CONSTRAINTS, "--no-deps", name], log)
    if torch is not None:
        borrow.link(torch, wanted.python)


def probe(pip: Sequence[object], options: Sequence[str], folder: Path, log: Path) -> None:
    """Fetch one small package without patience, so that a missing network is told at once."""
    small = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("iniconfig=="))
    quick = ["--no-cache-dir", "--retries", "0", "--timeout", "20", "--no-deps", "-d", folder / "probe"]
    step("asking the package index", [*pip, "download", *options, *quick, small], log)
    shutil.rmtree(folder / "probe", ignore_errors=True)


def step(what: str, command: Sequence[object], log: Path) -> None:
    """Run one step of the set-up, its output in the log file, the time on the screen.

    :raises SetupError: it failed; the text holds its last lines
    """
    print(f"  {what} ...", end="", flush=True)
    began = time.monotonic()
    with log.open("ab") as sink:
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    print(f" {time.monotonic() - began:.0f} s" if code == 0 else " failed", flush=True)
    if code != 0:
        raise SetupError(explain(what, log))


def explain(what: str, log: Path) -> str:
    """Return why a step failed, from the end of its log, and what to do."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    tail = "\n".join("    " + line for line in lines[-8:])
    text = "\n".join(lines[-60:])
    if "No space left on device" in text:
        advice = "The disk is full. Free some space and run the same command again."
    elif NETWORK_SIGNS.search(text) or "No matching distribution" in text:
        advice = (
            "pip did not reach a package index that has this. Check the network; behind a proxy set HTTPS_PROXY, "
            "with an index of your own set PIP_INDEX_URL. Then run the same command again."
        )
    else:
        advice = f"The whole output is in {log}."
    return f"Failed while {what}:\n{tail}\n{advice}"


def shown(path: Path) -> str:
    """Return the path as the user would type it from the repository."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
