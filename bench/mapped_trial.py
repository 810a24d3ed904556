"""Trial of ``bench_mapped``: it sleeps for the seconds of its argument, and reports one number."""

import sys
import time

import airflow_provider_dtrain.train as dtrain

with dtrain.init() as ctx:
    if "torch" in sys.argv:
        import torch  # noqa: F401
    time.sleep(float(sys.argv[1]))
    ctx.report_validation(1, {"score": 0.5})
