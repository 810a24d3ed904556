"""Trains a small model, saves every two steps, and fails once at a given step."""

import json
import os
import sys

import torch

import airflow_provider_dtrain.train as dtrain

with open(os.environ["DTRAIN_CONTEXT"]) as file:
    ATTEMPT = json.load(file)["attempt"]

UNTIL, FAIL_AT = int(sys.argv[1]), int(sys.argv[2])


def main():
    with dtrain.init() as ctx:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = ctx.prepare(model, optimizer)
        step = ctx.restore_checkpoint()
        print("start", step, dtrain.parameters_sha256(model)[:16], flush=True)
        print("secrets", "DTRAIN_SECRETS" in os.environ, ctx.data_config.get("secrets"), flush=True)
        while step < UNTIL:
            loss = model(torch.randn(8, 4)).square().mean()
            ctx.backward(loss)
            ctx.step(optimizer)
            step += 1
            if step % 2 == 0:
                ctx.report_validation(step, {"loss": abs(step - 4) / 10})
                ctx.save_checkpoint(step)
            if step == FAIL_AT and ctx.hparams["fail"] and ATTEMPT == 1:
                raise ValueError("told to fail")
        print("end", step, dtrain.parameters_sha256(model), flush=True)


main()
