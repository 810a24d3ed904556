"""Ranks that report shards as those of a batch inference do. ``data`` of the configuration says how each shard ends.

``data.total`` is the number of shards, and ``data.ends`` maps a shard to ``kill`` (at each try), ``kill once``,
``give up`` after three tries, ``unreadable`` at the first one, or ``nothing left`` after it was set aside. Finished
shards are files in ``data.ledger``, which all attempts share.
"""

import json
import os
import signal
import sys
from pathlib import Path

from airflow_provider_dtrain.train.reports.events import EventWriter

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
context = json.loads(Path(os.environ["DTRAIN_CONTEXT"]).read_text())
failures = {int(index): times for index, times in context["shard_failures"].items()}
section, data = context["config"]["inference"], context["config"]["data"]
ledger = Path(data["ledger"])
done = {int(file.name) for file in ledger.iterdir()}
missing = [index for index in range(data["total"]) if index not in done]
events = EventWriter(Path(os.environ["DTRAIN_EVENTS"]))
if rank == 0:
    print("failures", json.dumps(failures), flush=True)
    events.write("shards", {
        "total": data["total"], "missing": len(missing), "rows": data["total"] * 10, "rows_done": len(done) * 10,
        "location": section["outputs"]["path"], "batch_size": section["batch_size"], "resumed": bool(done),
    })  # fmt: skip
if data.get("fails"):
    sys.exit(3)
for index in range(rank, data["total"], world_size):
    if index in done:
        continue
    shard = {"shard": index, "label": f"part-{index}.parquet rows 0-9"}
    if failures.get(index, 0) >= 3:
        events.write("shard_skipped", {**shard, "error": "it failed 3 times"}, sync=True)
        (ledger / str(index)).touch()
        continue
    events.write("shard_started", {**shard, "tries": 1}, sync=True)
    end = data.get("ends", {}).get(str(index))
    if end == "kill" or (end == "kill once" and not failures):
        os.kill(os.getpid(), signal.SIGKILL)
    if end in ("give up", "unreadable", "nothing left"):
        tries = 3 if end == "give up" else 1
        events.write(
            "shard_failed", {**shard, "error": "ValueError: poison", "tries": tries, "is_final": True}, sync=True
        )
        if end == "nothing left":
            events.write("shard_skipped", {**shard, "error": "ValueError: poison"}, sync=True)
        print(f"dtrain: {end}", file=sys.stderr, flush=True)
        sys.exit(66)
    (ledger / str(index)).touch()
    events.write(
        "shard_done",
        {"shard": index, "rows": 10, "bytes": 100, "part": f"part-{index}", "sha256": "a" * 64, "seconds": 0.01},
        sync=True,
    )
if rank == 0:
    events.write("manifest", {
        "location": section["outputs"]["path"], "rows": data["total"] * 10, "rows_bad": 0, "shards": data["total"],
        "bytes": data["total"] * 100, "skipped": [], "sha256": "b" * 64, "schema": {"label": "int64"},
    }, sync=True)  # fmt: skip
events.close()
