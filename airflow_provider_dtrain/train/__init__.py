"""The training library: what user code on the hosts imports. No Airflow, and torch only inside functions.

::

    import airflow_provider_dtrain.train as dtrain

    with dtrain.init(hparams={"lr": 0.1, "global_batch_size": 64}) as ctx:
        model, optimizer = ctx.prepare(model, optimizer)
        step = ctx.restore()
        for epoch in ctx.epochs(10):
            for batch in ctx.loader(dataset):
                ctx.backward(loss_fn(model, batch))
                ctx.step(optimizer)
                step += 1
                ctx.report(step, {"loss": loss})
            ctx.report_validation(step, {"accuracy": accuracy})
            ctx.save_checkpoint(step)

The same file runs as a trial, under ``torchrun`` and with ``python train.py``.
"""

from __future__ import annotations

from airflow_provider_dtrain.train.context import Context
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.errors import (
    BatchSizeError,
    CheckpointError,
    DamagedCheckpointError,
    HparamError,
    LeaderFailedError,
    MetricError,
    NonFiniteLossError,
    SetupError,
    TrainError,
)
from airflow_provider_dtrain.train.startup import init
from airflow_provider_dtrain.train.state import parameters_sha256, unwrap

__all__ = [
    "BatchSizeError",
    "CheckpointError",
    "Context",
    "DamagedCheckpointError",
    "Distributed",
    "HparamError",
    "LeaderFailedError",
    "MetricError",
    "NonFiniteLossError",
    "SetupError",
    "TrainError",
    "init",
    "parameters_sha256",
    "unwrap",
]
