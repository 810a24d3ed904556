"""Asynchronous successive halving, under its public path. The code is in ``core/search/asha.py``."""

from __future__ import annotations

from airflow_provider_dtrain.core.search.asha import Rungs, brackets, rung_lengths

__all__ = [
    "Rungs",
    "brackets",
    "rung_lengths",
]
