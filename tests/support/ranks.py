"""Ranks of a script: processes over gloo on 127.0.0.1, started with torchrun's environment contract."""

from __future__ import annotations

import json
import os
import re
import socket
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.support.event_lines import lines_of
from tests.support.warm_ranks import AT_IMPORT, Order, warm_ranks

ROOT = Path(__file__).parents[2]

DEADLINE_S = 120


@dataclass
class Rank:
    """Results of one rank: exit code, output and folder."""

    exit_code: int
    output: str
    folder: Path

    @property
    def events(self):
        return lines_of(self.folder / "events")

    @property
    def error(self):
        path = self.folder / "error.json"
        return json.loads(path.read_text()) if path.exists() else None

    def said(self, pattern):
        """Return what the first group of the pattern matched in the output, everywhere."""
        return re.findall(pattern, self.output)


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def run_ranks(script, run_dir, size, *, context=None, env=None):
    """Run the script as a trial's ranks, and return what they left."""
    run_dir.mkdir(parents=True, exist_ok=True)
    document = {"trial_id": 1, "attempt": 1, "hparams": {"global_batch_size": 8}, "seed": 3, "config": {}}
    document |= context or {}
    (run_dir / "context.json").write_text(json.dumps(document))
    checkpoints = document.get("checkpoint_dir") or str(run_dir / "checkpoints")
    common = {
        "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(ROOT),
        **AT_IMPORT, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
        "DTRAIN_RUN": "t1.1.7", "DTRAIN_RUN_DIR": str(run_dir), "DTRAIN_CONTEXT": str(run_dir / "context.json"),
        "DTRAIN_CHECKPOINT_DIR": checkpoints, "GLOO_SOCKET_IFNAME": "lo", **(env or {}),
    }  # fmt: skip
    folders = [run_dir / f"rank{rank}" for rank in range(size)]
    orders = []
    for rank, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "DTRAIN_EVENTS": str(folder / "events"),
               "TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}  # fmt: skip
        orders.append(Order(str(script), str(run_dir), {**common, **own}, str(folder / "output")))
    codes = warm_ranks(*(common[name] for name in AT_IMPORT)).run(orders, DEADLINE_S)
    return [Rank(code, (folder / "output").read_text(), folder) for code, folder in zip(codes, folders, strict=True)]


def script(tmp_path, body):
    """Write a script whose body runs inside ``with dtrain.init() as ctx``."""
    path = tmp_path / "script.py"
    head = "import sys, torch\nimport airflow_provider_dtrain.train as dtrain\n"
    path.write_text(head + textwrap.dedent(body))
    return path
