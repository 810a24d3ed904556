"""Two ranks that train until the file ``~/enough`` exists.

With the argument ``sleep``, rank 1 sleeps from step 20 on. With ``uneven``, rank 0 leaves its loop at step 20 and
reports, while the other rank goes on.
"""

import os
import sys
import time

import torch

import airflow_provider_dtrain.train as dtrain

with dtrain.init(device="cpu") as ctx:
    model = torch.nn.Linear(4, 1)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    step, rank = 0, ctx.distributed.get_rank()
    is_uneven = sys.argv[1] == "uneven"
    while is_uneven or not ctx.distributed.any(os.path.exists(os.path.expanduser("~/enough"))):
        if is_uneven and rank == 0 and step == 20:
            ctx.report_validation(step, {"loss": 1.0})
        if sys.argv[1] == "sleep" and rank == 1 and step == 20:
            time.sleep(1000)
        ctx.backward(model(torch.randn(8, 4)).sum())
        ctx.step(optimizer)
        step += 1
        print("step", step, flush=True) if step == 10 else None
        time.sleep(0.01)
