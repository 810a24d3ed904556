"""Stand-in for NVIDIA's management library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")


def build_library(folder: Path) -> None:
    """Write a library that answers like NVIDIA's into a folder."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler is needed to build the stand-in for NVIDIA's library")
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], capture_output=True
    )
    assert done.returncode == 0, done.stderr
