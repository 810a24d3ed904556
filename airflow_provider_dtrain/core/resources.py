"""Value types of hosts, requests and placements, under its public path. The code is in ``core/scheduling/model.py``."""

from __future__ import annotations

from airflow_provider_dtrain.core.scheduling.model import (
    GangRequest,
    Host,
    Placement,
    PoolOptions,
    RunningGang,
    Unplaceable,
)

__all__ = [
    "GangRequest",
    "Host",
    "Placement",
    "PoolOptions",
    "RunningGang",
    "Unplaceable",
]
