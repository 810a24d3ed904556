"""``airflow dtrain slots``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.listings.source import StoreSource
from airflow_provider_dtrain.terminal import cluster

if TYPE_CHECKING:
    from argparse import Namespace


@command
def list_slots(args: Namespace) -> None:
    """List slots and the trials that hold them."""
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    cluster.list_slots(args, StoreSource(DtrainHook().store))
