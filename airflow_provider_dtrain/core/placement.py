"""Placement of a gang, under its public path. The code is in ``core/scheduling/placement.py``."""

from __future__ import annotations

from airflow_provider_dtrain.core.scheduling.placement import find, place

__all__ = [
    "find",
    "place",
]
