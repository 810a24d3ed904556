"""Deliberate breaks of the protocol, the store and the supervisor, each with the fast test that detects it.

    python -m tests.faults.mutants            # every mutant, one line each
    python -m tests.faults.mutants token      # mutants whose name contains the word

Each mutant is applied to a copy of the repository. Its test passes on the unbroken copy and must fail on the broken
one. ``test_mutants.py`` checks in every test run that each mutant still matches the code, that its test exists, and
that README.md lists it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.mutant_table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("airflow_provider_dtrain", "tests", "dags", "docs", "bench", "testbed", "pyproject.toml", "README.md")
TIMEOUT_S = 300.0


def broken_copy(mutant: Mutant, folder: Path) -> None:
    """Apply a mutant to the copy of the repository in ``folder``.

    :raises ValueError: the text to replace does not occur exactly once
    """
    text = (ROOT / mutant.path).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.path} must have one place with {mutant.old!r}, got {text.count(mutant.old)}.")
    (folder / mutant.path).write_text(text.replace(mutant.old, mutant.new))


def run_tests(tests: Sequence[str], folder: Path, *, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run tests on the copy of the repository in ``folder``, up to the first failure."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "change", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=folder, env=environment, timeout=timeout_s, capture_output=True, check=False)


def check_whole(mutants: Sequence[Mutant], folder: Path) -> None:
    """Check that the tests of all mutants pass on the unbroken copy.

    :raises RuntimeError: a test fails there, so it could not detect its mutant
    """
    tests = list(dict.fromkeys(mutant.test for mutant in mutants))
    done = run_tests(tests, folder, timeout_s=TIMEOUT_S + 10 * len(tests))
    if done.returncode:
        raise RuntimeError(f"The tests fail on the unbroken copy:\n{done.stdout.decode()[-2000:]}")


def is_killed(mutant: Mutant, folder: Path) -> bool:
    """Return whether the mutant's test fails on the broken copy."""
    broken_copy(mutant, folder)
    try:
        done = run_tests([mutant.test], folder, timeout_s=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return True
    finally:
        shutil.copy(ROOT / mutant.path, folder / mutant.path)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.name}: pytest could not run its test:\n{done.stdout.decode()[-2000:]}")
    return done.returncode == 1


def main() -> int:
    """Run the mutants and return the number of survivors."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants", description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only mutants whose name contains this word")
    word = parser.parse_args().word
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="dtrain-mutants-") as name:
        folder = Path(name)
        # Some tests run the supervisor under another account, which must reach the copy.
        folder.chmod(0o755)
        for part in COPIED:
            source = ROOT / part
            shutil.copytree(source, folder / part) if source.is_dir() else shutil.copy(source, folder / part)
        mutants = [mutant for mutant in MUTANTS if word in mutant.name]
        check_whole(mutants, folder)
        for mutant in mutants:
            begun = time.monotonic()
            killed = is_killed(mutant, folder)
            survivors += not killed
            verdict = "killed" if killed else "SURVIVED"
            print(f"{verdict:<9}{time.monotonic() - begun:>6.1f} s  {mutant.name}", flush=True)
    return survivors


if __name__ == "__main__":
    raise SystemExit(main())
