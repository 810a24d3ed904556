"""Stand-in for NVIDIA's management library, built once by a fixture."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a library that answers like NVIDIA's."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler is needed to build the stand-in for NVIDIA's library")
    folder = tmp_path_factory.mktemp("nvml")
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return folder
