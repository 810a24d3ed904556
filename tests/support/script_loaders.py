"""Loaders of a script on one of several ranks, without the other ranks."""

from __future__ import annotations

from torch.utils import data as td

from airflow_provider_dtrain.train.data.script_loaders import Loader, ScriptLoaders, ValidationLoader
from airflow_provider_dtrain.train.data.shares import Shares
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment


def training_loader(dataset, progress, *, seed=1, per_slot=4, max_batches=None, options=None, **chosen):
    """Return what ``ctx.loader`` gives a single rank."""
    shares = ScriptLoaders(Distributed(RankEnvironment()), seed).shares(
        dataset,
        "ctx.loader",
        "training",
        per_slot=lambda: per_slot,
        batch_size=None,
        limit=max_batches,
        options=options or {},
        **{"shuffle": None, **chosen},
    )
    return Loader(shares, progress)


def validation_part(dataset, *, rank=0, size=1, per_slot=4):
    """Return what ``ctx.validation_loader`` gives a rank."""
    distributed = Distributed(RankEnvironment(rank=rank, world_size=size))
    loader = td.DataLoader(dataset, batch_size=per_slot)
    return ValidationLoader(Shares(loader, distributed, 0, "validation", whole=True))
