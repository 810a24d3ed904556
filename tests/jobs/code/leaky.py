"""Ranks that show what they must not: every secret and private variable, wherever a rank can write text."""

import json
import os
import sys
import time
from pathlib import Path

from airflow_provider_dtrain.train.reports.events import EventWriter

rank = int(os.environ["RANK"])
secrets = json.loads(os.environ["DTRAIN_SECRETS"])
values = [*map(str, secrets.values()), os.environ["HARMLESS"], os.environ["DATABASE"]]
events = EventWriter(Path(os.environ["DTRAIN_EVENTS"]))
events.write("note", {"text": f"all: {values}", "nested": [{"of": values}], values[0]: 1})
events.write("validation", {"step": 1, "metrics": {values[0]: 0.5}, "note": values[1]})
events.write("shard_failed", {"shard": 0, "label": values[0], "error": values[-1], "tries": 1, "is_final": False})
events.write("returned", {"json": json.dumps({"values": values})})
for value in values:
    half = len(value) // 2
    print("a secret:", value[:half], end="")
    sys.stdout.flush()
    os.fsync(1) if Path("/dev/stdout").is_file() else None
    print(value[half:])
    print(json.dumps([value]), repr(value), file=sys.stderr)
print(dict(os.environ), flush=True)
# The test sees what the ranks got; Python's hash would differ from process to process.
seen = [Path(f"{os.environ['SEEN']}-{number}") for number in range(2)]
seen[rank].with_suffix(".part").write_text(json.dumps(values))
seen[rank].with_suffix(".part").rename(seen[rank])
if len(sys.argv) > 1 and rank == int(sys.argv[1]):
    # The end of one rank ends the other one.
    while not seen[1 - rank].exists():
        time.sleep(0.01)
    if sys.argv[2] == "raise":
        raise RuntimeError(f"cannot use {values}")
    os._exit(3)
