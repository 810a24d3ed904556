"""Deliberate breaks of the protocol, the store and the supervisor, each with the fast test that notices it.

    python -m tests.faults.mutants            # every mutant, a line each
    python -m tests.faults.mutants token      # those whose name has the word

Each mutant is applied to a copy of the repository, and its test, which passes on the whole copy, must fail there.
``test_mutants.py`` checks in every run that each break still fits the code, that its test exists, and that README.md
lists it.
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
COPIED = ("airflow_provider_dtrain", "tests", "dags", "docs", "bench", "pyproject.toml", "README.md")
TIMEOUT_S = 300.0


def broken_copy(mutant: Mutant, folder: Path) -> None:
    """Break the copy of the repository in ``folder``, and mend what the mutant before it broke.

    :raises ValueError: the line to break is not there exactly once
    """
    text = (ROOT / mutant.path).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.path} has {text.count(mutant.old)} places with {mutant.old!r}, not 1.")
    (folder / mutant.path).write_text(text.replace(mutant.old, mutant.new))


def run_tests(tests: Sequence[str], folder: Path, *, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run tests on the copy of the repository in ``folder``, up to the first that fails."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=folder, env=environment, timeout=timeout_s, capture_output=True, check=False)


def check_whole(mutants: Sequence[Mutant], folder: Path) -> None:
    """Do nothing when the tests of all mutants pass on the copy that is not broken.

    :raises RuntimeError: one fails there, so it could not tell whether a mutant is noticed
    """
    tests = list(dict.fromkeys(mutant.test for mutant in mutants))
    done = run_tests(tests, folder, timeout_s=TIMEOUT_S + 10 * len(tests))
    if done.returncode:
        raise RuntimeError(f"Without any mutant the tests fail:\n{done.stdout.decode()[-2000:]}")


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
    """Run the mutants and return how many survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants", description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only mutants whose name has this word")
    word = parser.parse_args().word
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="dtrain-mutants-") as name:
        folder = Path(name)
        # Some tests run the supervisor under another account.
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
