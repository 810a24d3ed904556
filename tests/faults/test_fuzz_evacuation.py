"""A few fuzzed evacuations. ``python -m tests.faults.fuzz_evacuation`` runs a hundred."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.slow]


def test_evacuated_trainings_have_the_weights_of_an_undisturbed_one() -> None:
    command = [sys.executable, "-m", "tests.faults.fuzz_evacuation", "--evacuations", "10", "--minutes", "10"]
    found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=1200)
    assert found.returncode == 0, found.stdout + found.stderr
