"""Ranks of a program in new interpreters: without site-packages, so without PyTorch, numpy and fsspec, or with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.ranks import ROOT, free_port


def start(
    folder: Path, body: str, size: int, *, packages: bool = False, **context: object
) -> list[subprocess.Popen[str]]:
    """Start the ranks of a program. ``context`` replaces parts of the trial's document.

    :param packages: the ranks find installed packages
    """
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(textwrap.dedent(body))
    document = {"trial_id": 1, "attempt": 1, "hparams": {"lr": 0.1}, "seed": 3, "config": {}, **context}
    (folder / "context.json").write_text(json.dumps(document))
    port, ranks = str(free_port()), []
    for rank in range(size):
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "DTRAIN_RUN": "t1.1.7",
            "DTRAIN_RUN_DIR": str(folder),
            "DTRAIN_CONTEXT": str(folder / "context.json"),
            "DTRAIN_EVENTS": str(folder / f"events{rank}"),
        }
        command = [sys.executable, *([] if packages else ["-S"]), "program.py"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen(command, cwd=folder, env=environment, **pipes))
    return ranks


def outputs(ranks: list[subprocess.Popen[str]]) -> list[str]:
    """Return the output of each rank, all of which must end with exit code 0."""
    found = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), found
    return found
