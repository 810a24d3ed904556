"""Steps of a set-up, and the settings with which uv installs the packages that pip would install."""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

NETWORK_SIGNS = re.compile(
    r"name resolution|Name or service not known|getaddrinfo|Failed to establish|Connection refused|timed out|"
    r"ProxyError|Network is unreachable|Could not fetch URL|SSLError|NewConnectionError|Connection (reset|broken)",
    re.IGNORECASE,
)
#: Variables that set uv's index. When one is set, pip's index is not passed to uv.
UV_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_NO_INDEX")


class SetupError(Exception):
    """The environment cannot be created. The message gives the reason and the remedy."""


def step(what: str, command: Sequence[object], log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run one step of the set-up, with its output in the log file and its duration on the screen.

    :raises SetupError: the step failed; the message holds its last lines
    """
    with begun(command, log, env) as process:
        _end(what, process, log)


@contextmanager
def begun(
    command: Sequence[object], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a program that runs, with its output in the log file. It is terminated at the end of the block."""
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=None if env is None else dict(env),
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _end(what: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for a program.

    :raises SetupError: it failed; the message holds the last lines of its log
    """
    print(f"  {what} ...", end="", flush=True)
    began = time.monotonic()
    code = process.wait()
    print(f" {time.monotonic() - began:.0f} s" if code == 0 else " failed", flush=True)
    if code != 0:
        raise SetupError(explain(what, log))


def explain(what: str, log: Path) -> str:
    """Return the message for a failed step: the end of its log and the remedy."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    tail = "\n".join("    " + line for line in lines[-8:])
    text = "\n".join(lines[-60:])
    if "No space left on device" in text:
        advice = "The disk is full. Free some space and run the same command again."
    elif NETWORK_SIGNS.search(text) or "No matching distribution" in text:
        advice = (
            "pip did not reach a package index that has this package. Check the network. Behind a proxy set "
            "HTTPS_PROXY; with a private index set PIP_INDEX_URL. Then run the same command again."
        )
    else:
        advice = f"The complete output is in {log}."
    return f"Failed while {what}:\n{tail}\n{advice}"


def find_uv() -> str | None:
    """Return the path of uv, None when it is missing or does not run.

    A version manager may have a stub on PATH without an installed uv.
    """
    found = shutil.which("uv")
    if found is None:
        return None
    try:
        done = subprocess.run([found, "--version"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found if done.returncode == 0 else None


def pip_settings(pip: Sequence[object]) -> dict[str, str]:
    """Return name -> value of pip's settings, from its files and variables. Variables take precedence."""
    command = [str(part) for part in (*pip, "config", "list")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    settings = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in ("global", "install", ":env:"):
            settings[key] = str(ast.literal_eval(value))
    return settings


def uv_options(settings: Mapping[str, str], caller: Mapping[str, str]) -> list[str]:
    """Return the options that make uv use the same package sources as pip.

    :param settings: pip's settings by name
    :param caller: environment of the caller, whose uv settings take precedence
    """
    options = [part for folder in settings.get("find-links", "").split() for part in ("--find-links", folder)]
    options += [part for host in settings.get("trusted-host", "").split() for part in ("--allow-insecure-host", host)]
    if any(name in caller for name in UV_INDEX):
        return options
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return [*options, "--no-index"]
    if "index-url" in settings:
        options += ["--default-index", settings["index-url"]]
    further = settings.get("extra-index-url", "").split()
    if further:
        # pip takes the best version of all indexes; uv stops at the first index that has the name.
        options += ["--index-strategy", "unsafe-best-match"]
    return options + [part for url in further for part in ("--index", url)]


def uv_environment(settings: Mapping[str, str], caller: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of uv: the caller's, with pip's certificates unless the caller sets its own."""
    certificates = {"SSL_CERT_FILE": settings["cert"]} if settings.get("cert") else {}
    return certificates | dict(caller)


def installed_version(python: Path, name: str) -> str | None:
    """Return the version of a distribution in an environment, None when it is not installed."""
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    done = subprocess.run([python, "-c", code, name], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


class Installer:
    """Installs packages in one environment: PyTorch with pip, the rest with uv, or with pip if uv fails.

    :param python: the environment's interpreter
    :param constraints: versions to take
    :param log: file for the output of all steps
    """

    def __init__(self, python: Path, constraints: Path, log: Path) -> None:
        self.python, self.constraints, self.log = python, constraints, log
        self.pip: list[object] = [python, "-m", "pip"]
        self.quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]

    def probe(self, package: str) -> None:
        """Download one small package with a short timeout and no retries, to report a missing network at once."""
        folder = self.python.parent.parent / "probe"
        quick = ["--no-cache-dir", "--retries", "0", "--timeout", "20", "--no-deps", "-d", folder]
        step("contacting the package index", [*self.pip, "download", *self.quiet, *quick, package], self.log)
        shutil.rmtree(folder, ignore_errors=True)

    @functools.cached_property
    def uv(self) -> str | None:
        """Path of uv on PATH or, newly installed, in the environment. None if the package index has none."""
        found = find_uv()
        if found is not None:
            return found
        try:
            self.with_pip("installing uv", "uv")
        except SetupError:
            print("  pip installs everything instead, which takes longer.", flush=True)
            return None
        return str(self.python.with_name("uv"))

    def with_pip(self, what: str, *arguments: str) -> None:
        """Install with pip.

        :raises SetupError: the installation failed
        """
        step(what, self._pip_command(*arguments), self.log)

    @contextmanager
    def torch_beside(self, torch: str) -> Iterator[None]:
        """Install PyTorch with pip while the block installs other packages, and its dependencies after the block.

        :raises SetupError: the installation failed
        """
        log = self.log.with_name(f"{self.log.stem}-torch.log")
        log.write_text("")
        print("  installing PyTorch ... beside the next steps", flush=True)
        with begun(self._pip_command("--no-deps", torch), log) as process:
            yield
            _end("waiting for PyTorch", process, log)
        self.install("installing the dependencies of PyTorch", "torch")

    def _pip_command(self, *arguments: str) -> list[object]:
        # Python compiles what is imported later: to compile all of PyTorch takes 20 s.
        return [*self.pip, "install", "--no-compile", *self.quiet, "-c", self.constraints, *arguments]

    def install(self, what: str, *arguments: str) -> None:
        """Install with uv if possible, otherwise with pip, and keep the version of torch.

        :param arguments: packages, and options that uv and pip share

        :raises SetupError: the installation failed, or replaced torch
        """
        before = installed_version(self.python, "torch")
        if self.uv is None or not self._with_uv(what, arguments, before):
            self.with_pip(what, *arguments)
        after = installed_version(self.python, "torch")
        if before is not None and after != before:
            raise SetupError(
                f"Failed while {what}: torch {before} was replaced by {after}. "
                f"Remove {self.python.parent.parent} and run the same command again."
            )

    def _with_uv(self, what: str, arguments: Sequence[str], torch: str | None) -> bool:
        """Return whether uv installed the packages. After a failure the caller falls back to pip."""
        settings = pip_settings(self.pip)
        constraints = ["-c", self.constraints]
        if torch is not None:
            own = self.python.parent.parent / "torch-constraint.txt"
            own.write_text(f"torch=={torch}\n")
            constraints += ["-c", own]
        options = ["--no-progress", "--python", self.python, *constraints, *uv_options(settings, os.environ)]
        command = [self.uv, "pip", "install", *options, *arguments]
        try:
            step(f"{what} (uv)", command, self.log, uv_environment(settings, os.environ))
        except SetupError:
            print(f"  uv failed (its output is in {self.log}); falling back to pip.", flush=True)
            return False
        return True
