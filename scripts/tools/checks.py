"""Implementation of scripts/test: installs the tests' dependencies, then runs linters, type checks and tests."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import borrow
import environment

ROOT = environment.ROOT
EXTRAS = ("dev", "examples", "postgres")
#: Folder of pytest's caches, which hold the names of failed tests, relative to the repository.
BOOKS = Path(".pytest_cache", "checks")
#: pytest's exit code when tests failed and no other error occurred.
FAILED_TESTS = 1


@dataclass(frozen=True)
class Tool:
    """A program that some tests require."""

    program: str
    #: Debian package of the program.
    package: str
    #: Tests that are skipped without it.
    tests: str
    #: Further folders to search, as patterns.
    folders: tuple[str, ...] = ("/usr/sbin", "/sbin")

    def found(self) -> bool:
        """Return whether the program is on this machine."""
        there = [path for pattern in self.folders for path in Path("/").glob(f"{pattern[1:]}/{self.program}")]
        return bool(shutil.which(self.program) or there)


IMAGES, PODMAN = "every test that builds an image", ("/usr/libexec/podman", "/usr/lib/podman")
TOOLS = (
    Tool("sshd", "openssh-server", "every test that reaches a host over SSH"),
    Tool("ip", "iproute2", "every test with hosts in network namespaces"),
    Tool("unshare", "util-linux", "every test with hosts in network namespaces"),
    Tool("initdb", "postgresql", "the store's tests on PostgreSQL", ("/usr/lib/postgresql/*/bin",)),
    Tool("chromium", "chromium", "every test of the pages in a browser"),
    Tool("pgbouncer", "pgbouncer", "the store's test behind a pooler"),
    Tool("podman", "podman", "every test with a real container"),
    Tool("mmdebstrap", "mmdebstrap", IMAGES),
    Tool("catatonit", "catatonit", IMAGES, PODMAN),
    Tool("netavark", "netavark", IMAGES, PODMAN),
    Tool("aardvark-dns", "aardvark-dns", IMAGES, PODMAN),
    Tool("slurmctld", "slurm-wlm", "every test with a Slurm cluster"),
    Tool("munged", "munge", "every test with a Slurm cluster"),
    Tool("busybox", "busybox-static", "every test with a real container"),
)


#: The tests under a real scheduler, and the name of their check. Tests of pages come last: Playwright leaves an event
#: loop running in its process, in which no asynchronous test can run.
SCHEDULER_TESTS = ("tests/integration/test_main_job.py", "tests/integration/test_search_dags.py", "tests/ui")
BESIDE = "pytest, under a scheduler"
#: Folders of the other tests, in the order in which they run. Those with faults wait most of the time: they come first,
#: because type checks and a scheduler keep the machine busy then.
FOLDERS = (
    "tests/faults",
    "tests/contract",
    "tests/gpu",
    "tests/integration",
    "tests/oracle",
    "tests/property",
    "tests/unit",
)
#: Checks that run while the other ones run.
PAGES = "pages"
TYPES = "mypy"
TOGETHER = (BESIDE, PAGES, TYPES)
#: Pytest's options for each change, and for all tests with new random examples.
CHANGE = ("-m", "change")
ALL = ("--hypothesis-profile=nightly",)
#: Failed tests are re-run alone when there are at most this many.
SECOND_LOOK_MOST = 3
#: Files of tests that are named at the end.
FILES_SHOWN = 15


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Return our options, and the arguments for pytest."""
    parser = argparse.ArgumentParser(
        prog="scripts/test",
        allow_abbrev=False,
        usage="scripts/test [--all] [--here] [--no-apt] [--only-tests] [--torch-from PATH] [pytest arguments]",
        description="Creates or reuses .venv-test, installs the tests' dependencies, and runs ruff, mypy, "
        "import-linter and pytest. Arguments not listed here are passed to pytest: scripts/test -k placement",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="run the tests of the nightly tier as well, and the tests with random examples deeper (takes an hour)",
    )
    parser.add_argument("--here", action="store_true", help="use the active environment unchanged; install nothing")
    parser.add_argument("--no-apt", action="store_true", help="never install system packages, even as root")
    parser.add_argument("--only-tests", action="store_true", help="run pytest only, without linters and type checks")
    parser.add_argument("--torch-from", type=Path, metavar="PATH", help="use the PyTorch of this Python interpreter")
    return parser.parse_known_args()


def system_packages(*, may_install: bool) -> None:
    """Install missing programs if root on Debian or Ubuntu, otherwise print which tests are skipped."""
    missing = [tool for tool in TOOLS if not tool.found()]
    if missing and may_install and os.geteuid() == 0 and shutil.which("apt-get"):
        packages = sorted({tool.package for tool in missing})
        print(f"Installing system packages: {' '.join(packages)}", flush=True)
        # RUNLEVEL=1 keeps the packages from starting their services.
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(["apt-get", "-qq", *command], env=env, stdin=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                print(f"apt-get {command[0]} failed with exit code {done.returncode}.", flush=True)
                break
        missing = [tool for tool in TOOLS if not tool.found()]
    for tool in missing:
        print(f"Missing: {tool.program} (Debian: apt-get install {tool.package}). Skipped: {tool.tests}.", flush=True)
    if os.geteuid() != 0:
        print("Not root. Skipped: every test with hosts in network namespaces.", flush=True)


def interpreter(options: argparse.Namespace) -> Path:
    """Return the interpreter that the checks run in."""
    if not options.here:
        folder = ROOT / ".venv-test"
        return environment.ensure(environment.Wanted(folder=folder, extras=EXTRAS, torch_from=options.torch_from))
    active = os.environ.get("VIRTUAL_ENV")
    python = Path(active, "bin", "python") if active else Path(sys.executable)
    code = "import airflow, hypothesis, mypy, pytest"
    if subprocess.run([python, "-c", code], capture_output=True, check=False).returncode != 0:
        raise environment.SetupError(
            f"--here: {python} lacks Airflow or the test tools. Install them with "
            f"{python} -m pip install -c scripts/constraints.txt -e '.[dev,examples,postgres]' {environment.TORCH}"
        )
    return python


def commands(python: Path, further: Sequence[str], *, only_tests: bool, all_: bool) -> dict[str, list[str]]:
    """Return name -> command of each check, in the order in which they run.

    Arguments for pytest choose the tests themselves, so that a test that is named runs whatever its tier.
    """
    module = [str(python), "-m"]
    # Many tests wait for processes that they started: a few in parallel keep the machine busy. Files run in the order
    # of their folders, so that the short unit tests come last and no worker has a long file at the end.
    together = ["-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"]
    tests = {"pytest": [*module, "pytest", *further, *(ALL if all_ else ())]}
    if not further:
        tier = ALL if all_ else CHANGE
        # The scheduler tests wait for Airflow most of the time: the other tests run in parallel.
        ignored = [f"--ignore={path}" for path in SCHEDULER_TESTS]
        tests = {
            BESIDE: [*module, "pytest", *_books(BESIDE), *tier, *SCHEDULER_TESTS],
            "pytest": [*module, "pytest", *_books("pytest"), *tier, *together, "--durations=15", *ignored, *FOLDERS],
        }
    if only_tests:
        return tests
    return {
        "ruff check": [*module, "ruff", "check"],
        "ruff format": [*module, "ruff", "format", "--check"],
        "language": [str(python), "scripts/tools/prose.py"],
        TYPES: [*module, "mypy"],
        "import-linter": [str(python.parent / "lint-imports")],
        PAGES: [str(python), "scripts/tools/pages.py", *(["--all"] if all_ else [])],
        "documentation": [str(python), "scripts/tools/docs.py"],
    } | tests


@dataclass(frozen=True)
class Ended:
    """A check that has ended."""

    code: int
    took_s: float
    #: Of its processes, those that other processes have waited for.
    cpu_s: float


def run(checks: dict[str, list[str]], python: Path) -> int:
    """Run every check, even after a failure, and return the exit code of the first that failed."""
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    env, ended = {**os.environ, "PATH": path}, {}
    # Tests start thousands of processes. Without bytecode each of them would compile the package again.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    shutil.rmtree(ROOT / BOOKS, ignore_errors=True)
    threads = ThreadPoolExecutor(len(TOGETHER))
    running = {name: _start(checks[name], env, threads) for name in TOGETHER if name in checks}
    for name, command in checks.items():
        if name not in running:
            ended[name] = _run(name, command, env)
    for name, check in running.items():
        ended[name] = check.finish(name)
    codes = {name: check.code for name, check in ended.items()}
    files = _files()
    for name in (BESIDE, "pytest"):
        if codes.get(name) == FAILED_TESTS and _failures(name):
            codes[name] = _look_again(name, checks[name], env)
    print("\n".join(_times(ended, files)), flush=True)
    failed = [name for name, code in codes.items() if code]
    print(f"\nFailed: {', '.join(failed)}" if failed else "\nAll checks passed.", flush=True)
    return next((code for code in codes.values() if code), 0)


def _times(ended: dict[str, Ended], files: dict[str, tuple[float, float]]) -> list[str]:
    """Return tables of the checks and of the slowest files, by CPU time: the checks share the cores."""
    checks = {name: (check.cpu_s, check.took_s) for name, check in ended.items()}
    lines = []
    for title, rows in (("check", checks), ("slowest files", files)):
        slowest = sorted(rows.items(), key=lambda row: row[1], reverse=True)[:FILES_SHOWN]
        lines += ["", f"  CPU s  wall s  {title}"] * bool(slowest)
        lines += [f"{cpu_s:7.0f} {took_s:7.0f}  {name}" for name, (cpu_s, took_s) in slowest]
    return lines


def _files() -> dict[str, tuple[float, float]]:
    """Return path -> CPU time and duration in seconds of each file of tests."""
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for report in ROOT.glob(f"{BOOKS}/*.xml"):
        for test in ET.parse(report).iter("testcase"):
            values = [float(one.get("value", 0)) for one in test.iter("property") if one.get("name") == "cpu_s"]
            cpu_s, took_s = found[test.get("file", "")]
            found[test.get("file", "")] = cpu_s + sum(values), took_s + float(test.get("time", 0))
    return found


def _books(name: str) -> list[str]:
    """Return the pytest options for a cache of its own, with the names of failed tests, and for a report of times."""
    folder = BOOKS / name.replace(", ", "-").replace(" ", "-")
    return ["-o", f"cache_dir={folder}", "-o", "junit_family=xunit1", f"--junitxml={folder}.xml"]


def _failures(name: str) -> list[str]:
    """Return the tests that failed in a check."""
    path = ROOT / _books(name)[1].removeprefix("cache_dir=") / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def _look_again(name: str, command: list[str], env: dict[str, str]) -> int:
    """Re-run the failed tests of a check alone, if they are few, and return the final exit code.

    Tests with real processes, networks and deadlines share two cores here. A test that fails in the full run and passes
    alone is reported as unsteady: it must be repaired, but does not fail the change under test.
    """
    failures = _failures(name)
    if len(failures) > SECOND_LOOK_MOST:
        print(f"\n{len(failures)} tests failed: too many to re-run.", flush=True)
        return FAILED_TESTS
    again = [*command[: command.index("pytest") + 1], "-p", "no:cacheprovider", *failures]
    code = _run(f"{name}: re-run of {len(failures)}", again, env).code
    if code == 0:
        print("\nUNSTEADY, failed in the full run and passed alone:", *failures, sep="\n  ", flush=True)
    return code


def _run(name: str, command: list[str], env: dict[str, str]) -> Ended:
    print(f"\n== {name}", flush=True)
    ended = _ended(command, env, None)
    _say(name, ended)
    return ended


@dataclass(frozen=True)
class _Running:
    """A check that runs beside other checks, and whose output is printed at its end."""

    ended: Future[Ended]
    output: IO[str]

    def finish(self, name: str) -> Ended:
        """Wait for the end, and print the output."""
        ended = self.ended.result()
        self.output.seek(0)
        print(f"\n== {name}\n{self.output.read()}", flush=True)
        self.output.close()
        _say(name, ended)
        return ended


def _start(command: list[str], env: dict[str, str], threads: ThreadPoolExecutor) -> _Running:
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - finish() closes it
    return _Running(threads.submit(_ended, command, env, output), output)


def _ended(command: list[str], env: dict[str, str], output: IO[str] | None) -> Ended:
    began = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Ended(process.returncode, time.monotonic() - began, usage.ru_utime + usage.ru_stime)


def _say(name: str, ended: Ended) -> None:
    print(f"-- {name}: {'ok' if ended.code == 0 else 'FAILED'}, {ended.took_s:.0f} s", flush=True)


def main() -> int:
    """Run the checks, or print the reason for a failed set-up."""
    options, further = arguments()
    try:
        python = interpreter(options)
    except (environment.SetupError, borrow.BorrowError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    system_packages(may_install=not options.no_apt)
    return run(commands(python, further, only_tests=options.only_tests, all_=options.all), python)


if __name__ == "__main__":
    raise SystemExit(main())
