"""Trial of ``bench_mapped``: it notes its start in a file, sleeps for some seconds, and reports one number."""

import sys
import time

with open(sys.argv[1], "a") as starts:
    starts.write(f"{time.time()}\n")

import airflow_provider_dtrain.train as dtrain  # noqa: E402

with dtrain.init() as ctx:
    if "torch" in sys.argv:
        import torch  # noqa: F401
    time.sleep(float(sys.argv[2]))
    ctx.report_validation(1, {"score": 0.5})
