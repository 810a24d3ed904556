"""Optimizers by name and learning rates for large batches.

::

    optimizer = dtrain.optim.create(ctx.hparams["optimizer"], model, lr=ctx.hparams["lr"], weight_decay=0.01)
    scheduler = dtrain.optim.linear_scaling(
        optimizer, ctx, reference_batch_size=64, warmup_epochs=5, batches_per_epoch=len(ctx.loader(data))
    )
    model, optimizer, scheduler = ctx.prepare(model, optimizer, scheduler)
"""

from __future__ import annotations

from airflow_provider_dtrain.train.optim.by_name import create, get, names
from airflow_provider_dtrain.train.optim.parameters import split_parameters
from airflow_provider_dtrain.train.optim.scaling import LinearScaling, linear_scaling

__all__ = ["LinearScaling", "create", "get", "linear_scaling", "names", "split_parameters"]
