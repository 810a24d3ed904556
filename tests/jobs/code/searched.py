"""A trial without torch: reports ``score`` as its hyperparameters say, as the training library would.

Argument: the name of the metric that it reports.
"""

import json
import os
import sys
from pathlib import Path

from airflow_provider_dtrain.train.events import EventWriter

hparams = json.loads(os.environ["DTRAIN_HPARAMS"])
if hparams.get("fails"):
    raise ValueError(f"cannot go on with lr {hparams['lr']}")
if os.environ["RANK"] == "0":
    value = hparams.get("score", hparams["lr"])
    # NaN, as the training library writes it.
    value = None if value == "nan" else value
    EventWriter(Path(os.environ["DTRAIN_EVENTS"])).write("validation", {"step": 1, "metrics": {sys.argv[1]: value}})
