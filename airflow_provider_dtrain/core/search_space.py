"""Hyperparameter spaces, under its public path. The code is in ``core/search/space.py``."""

from __future__ import annotations

from airflow_provider_dtrain.core.search.space import check_space, constants, grid, grid_size, sample

__all__ = [
    "check_space",
    "constants",
    "grid",
    "grid_size",
    "sample",
]
