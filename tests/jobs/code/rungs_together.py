"""Ranks that train together and follow the searcher.

With ``FAULT``, rank 0 of a trial of quality 0.5 dies before it broadcasts a stop to the other ranks.
"""

import os
import signal

import torch

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.core_context import DECIDED

with dtrain.init(device="cpu") as ctx:
    rank, quality, largest = ctx.distributed.get_rank(), ctx.hparams["quality"], ctx.distributed.largest

    def dies(number):
        if number == DECIDED and quality == 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
        return largest(number)

    if os.environ.get("FAULT"):
        ctx.distributed.largest = dies
    model = torch.nn.Linear(4, 1)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    step = ctx.restore_checkpoint()
    while step < 8:
        ctx.backward(model(torch.randn(8, 4)).sum())
        ctx.step(optimizer)
        step += 1
        told = ctx.report_validation(step, {"quality": quality})
        print("told", step, told, flush=True)
        ctx.save_checkpoint(step)
        if told == "stop":
            break
    print("left at", step, ctx.should_stop, flush=True)
