"""A rank without torch that measures some batches, as the training library does."""

import os
import time
from pathlib import Path

from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.reports.timings import open_timings

path = Path(os.environ["DTRAIN_EVENTS"])
timings = open_timings(path, {}, EventWriter(path), int(os.environ["RANK"]))
for _batch in timings.batches(range(12)):
    time.sleep(0.1)
    timings.add("backward", 0.05)
    timings.batch_done(time.perf_counter())
timings.close()
