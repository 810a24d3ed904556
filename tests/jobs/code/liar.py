"""A rank that reports the paths in its arguments as checkpoints, whether they exist or not.

Each argument is PATH or PATH=BYTES: a folder with that many bytes is created, and 20 bytes are reported.
With PATH=deep the folder has a metadata.json that no parser can nest so deeply.
"""

import os
import sys
from pathlib import Path

from airflow_provider_dtrain.train.reports.events import EventWriter

events = EventWriter(Path(os.environ["DTRAIN_EVENTS"]))
for step, argument in enumerate(sys.argv[1:], 1):
    path, _, size = argument.partition("=")
    if size:
        folder = Path(os.environ["DTRAIN_RUN_DIR"]) / path
        folder.mkdir(parents=True)
        if size == "deep":
            (folder / "metadata.json").write_bytes(b"[" * 200_000)
        else:
            (folder / "state.bin").write_bytes(b"x" * int(size))
    events.write("checkpoint", {"step": step, "path": path, "size_bytes": 20, "metrics": {}, "removed": []})
events.close()
