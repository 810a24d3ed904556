"""Installation of downloaded files into a folder, by uv or pip, without index and credentials."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

from ..names import Json
from ..refusal import Refused
from .supervised import SupervisedProgram

#: Variables of the login that programs need which build packages. All others, such as those of an index, are left out.
PASSED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "CUDA_HOME", "CUDA_PATH", "CC", "CXX", "USER", "LOGNAME")
#: Options that keep both programs away from the network and from settings of the account.
_OFFLINE = {
    "UV_OFFLINE": "1",
    "UV_NO_CONFIG": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_NO_PROGRESS": "1",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_NO_INDEX": "1",
    "PIP_NO_INPUT": "1",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
#: Characters and lines at the end of a program's output that a failure shows.
_OUTPUT, _LINES = 16 << 10, 20
_FULL = "No space left on device"
#: A package cannot be built because what builds it is not installed.
_NO_BACKEND = ("BackendUnavailable", "ModuleNotFoundError", "No module named")
#: Names a package in the output of a failed build.
_FAILED = (
    re.compile(r"Failed (?:to build|to install|to read|to unpack)[:\s`']+(?:from file\S*\s+)?([A-Za-z0-9._-]+)"),
    re.compile(r"(?:ERROR|error): .*?(?:for|building) (?:wheel for )?['\"]?([A-Za-z0-9._-]+)['\"]?"),
)


class Installer:
    """The programs that make an environment.

    :param facts: of the interpreter
    :param uv: path of uv; None: pip
    :param work: folder for temporary files, on the file system of the environment
    """

    def __init__(
        self, facts: Json, uv: str | None, work: str, environ: Mapping[str, str], deadline: float, lock: int
    ) -> None:
        self.facts = facts
        self.uv = uv
        self.work = work
        self._deadline = deadline
        self._lock = lock
        for name in ("home", "tmp", "cache"):
            os.makedirs(os.path.join(work, name), mode=0o700, exist_ok=True)
        own = {"HOME": os.path.join(work, "home"), "TMPDIR": os.path.join(work, "tmp")}
        passed = {name: environ[name] for name in PASSED if name in environ}
        self._environ = {**passed, **own, **_OFFLINE, "UV_CACHE_DIR": os.path.join(work, "cache")}

    def make(self, target: str) -> None:
        """Create an environment without packages."""
        python = str(self.facts["executable"])
        if self.uv is not None:
            self._run([self.uv, "venv", "--no-project", "--python", python, target], "uv venv")
        elif self.facts["pip"] is not None:
            self._run([python, "-I", "-m", "venv", "--without-pip", target], "python -m venv")
        else:
            message = f"{python} comes without pip (ensurepip), and this host has no uv. Install one of them there"
            raise Refused("no_installer", f"{message}: apt install python3-venv, or pip install uv.")

    def install(self, target: str, files: Sequence[str], *, builds: bool) -> None:
        """Install files.

        :param builds: archives of sources, which may use the packages that are installed already
        """
        python = os.path.join(target, "bin", "python")
        listed = os.path.join(self.work, "sources.txt" if builds else "wheels.txt")
        with open(listed, "w", encoding="utf-8") as file:
            file.writelines(f"{path}\n" for path in files)
        only = ["--no-build-isolation"] if builds else ["--only-binary", ":all:"]
        common = ["--no-deps", "--no-index", *only, "-r", listed]
        if self.uv is not None:
            argv = [self.uv, "pip", "install", "--python", python, "--compile-bytecode", "--link-mode", "copy", *common]
            self._run(argv, "uv pip install")
        else:
            # A wheel of pip runs itself, so it is not part of the environment.
            pip = [python, "-I", os.path.join(self.facts["pip"], "pip")]
            self._run([*pip, "install", "--no-warn-script-location", *common], "pip install")

    def _run(self, argv: Sequence[str], name: str) -> None:
        log = os.path.join(self.work, "output")
        left_s = max(1.0, self._deadline - time.monotonic())
        with open(log, "wb") as output:
            supervised = SupervisedProgram(
                argv,
                left_s,
                [self._lock],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.work,
                env=self._environ,
            )
            status = supervised.wait()
        if status is None:
            raise Refused("timeout", f"{name} did not end within the time-out of the build.", lines=_tail(log))
        if status != 0:
            raise _refusal(name, status, _tail(log))


def _tail(path: str) -> list[str]:
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _OUTPUT))
        return file.read().decode("utf-8", "replace").rstrip().splitlines()[-_LINES:]


def _refusal(name: str, status: int, lines: list[str]) -> Refused:
    text = "\n".join(lines)
    if _FULL in text:
        return Refused("disk_full", "The disk of this host is full. Free some space, or set another remote_dir.")
    if any(mark in text for mark in _NO_BACKEND):
        lines = [
            *lines,
            "Packages are built without an index: add their build backend, such as setuptools, to the lock file.",
        ]
    package = next((found[1] for pattern in _FAILED if (found := pattern.search(text))), None)
    what = f"signal {status - 128}" if status > 128 else f"status {status}"
    return Refused("install", f"{name} ended with {what}.", package=package, lines=lines)


def find_uv(path: str | None) -> str | None:
    """Return the path of uv in the PATH or where its installers put it, None if there is none."""
    places = (path or "", *(os.path.expanduser(one) for one in ("~/.local/bin", "~/.cargo/bin")))
    found = shutil.which("uv", path=":".join(filter(None, places)))
    return found if found is not None and _works(found) else None


def _works(uv: str) -> bool:
    """Return whether a program is a uv of the versions that have the options used here."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([uv, "--version"], capture_output=True, timeout=10, check=False)
        found = re.match(rb"uv (\d+)\.(\d+)", done.stdout)
        return found is not None and (int(found[1]), int(found[2])) >= (0, 5)
    return False
