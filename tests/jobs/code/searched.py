"""A trial without torch that reports its hyperparameter ``score`` (default ``lr``), as the training library does.

Arguments: name of the reported metric, then optionally ``waits``: join and wait for a stop request, or ``naps``: take a
second.
"""

import json
import os
import sys
import time
from pathlib import Path

from airflow_provider_dtrain.train.reports.events import EventWriter

hparams = json.loads(os.environ["DTRAIN_HPARAMS"])
if hparams.get("fails"):
    raise ValueError(f"cannot go on with lr {hparams['lr']}")
if "naps" in sys.argv:
    print(f"my lr is {hparams['lr']}", flush=True)
    time.sleep(1)
if os.environ["RANK"] == "0":
    value = hparams.get("score", hparams["lr"])
    # NaN, as the training library writes it.
    value = None if value == "nan" else value
    writer = EventWriter(Path(os.environ["DTRAIN_EVENTS"]))
    if "waits" in sys.argv:
        writer.write("init", {})
        writer.write("first_step", {})
    writer.write("validation", {"step": 1, "metrics": {sys.argv[1]: value}})
    if "waits" in sys.argv:
        while not (Path(os.environ["DTRAIN_RUN_DIR"]) / "stop_requested").exists():
            time.sleep(0.1)
        writer.write("stopped", {"step": 1}, sync=True)
