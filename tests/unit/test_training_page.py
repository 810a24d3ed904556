"""The examples of docs/training.md run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "training.md").read_text(), re.MULTILINE | re.DOTALL)


def run(tmp_path, blocks):
    for index, block in enumerate(blocks):
        (tmp_path / f"example{index}.py").write_text(block)
    # One interpreter for all: importing torch is most of the time.
    code = f"import runpy\nfor i in range({len(blocks)}): runpy.run_path(f'example{{i}}.py', run_name='__main__')"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.torch
def test_every_example_of_the_training_page_runs(tmp_path):
    assert len(BLOCKS) >= 4
    done = run(tmp_path, BLOCKS)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data").is_dir()
