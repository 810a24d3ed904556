"""The programs of docs/coming-from-*.md: before with the other tool where it is installed, after as a trial."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_dtrain.core.config import assemble
from tests.support.engines import Engine

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
WITH_A_PROGRAM = ("torchrun", "wandb-sweeps", "ray-train")


def blocks(tool: str, language: str) -> list[str]:
    text = (ROOT / "docs" / f"coming-from-{tool}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def program(tool: str, sign: str) -> str:
    """Return the program with the lines of a sign, ``-`` or ``+``."""
    (diff,) = blocks(tool, "diff")
    return "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] in f" {sign}\n") + "\n"


def document(tool: str) -> dict[str, Any]:
    (found,) = (yaml.safe_load(text) for text in blocks(tool, "yaml"))
    found["resources"] = {**found.get("resources", {}), "pool": "local"}
    found["environment"] = {"variables": {"OMP_NUM_THREADS": "1"}}
    if found.get("searcher", {}).get("name") == "random":
        # One trial of the search, which is valid as it is.
        assert assemble(None, found).config.searcher.max_trials == 4
        found["searcher"] = {"name": "single", "metric": found["searcher"]["metric"], "smaller_is_better": True}
        found["hyperparameters"] = {"lr": 0.1}
    return {**found, "max_restarts": 0}


@pytest.mark.parametrize("tool", WITH_A_PROGRAM)
async def test_a_ported_program_runs_as_a_trial(
    engine: Engine, caplog: pytest.LogCaptureFixture, tmp_path: Path, tool: str
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "after"
    folder.mkdir()
    (folder / "train.py").write_text(program(tool, "+"))
    outcome = await engine.carry(engine.submit(document(tool), folder=folder), most_s=240)
    assert outcome is not None
    assert outcome.state == "completed", (outcome, caplog.text[-3000:])
    if tool == "torchrun":
        assert losses(caplog.text) == losses(by_torchrun(tmp_path / "before", program(tool, "-")))


def losses(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"(\d+) ranks, loss (\S+)", text)
    assert len(found) == 1
    return found


def by_torchrun(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "train.py").write_text(text)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    return subprocess.run(launcher, cwd=folder, capture_output=True, text=True, timeout=240, check=True).stdout
