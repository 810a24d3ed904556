"""Merge of a template and a configuration, under its public path. The code is in ``core/config/merge.py``."""

from __future__ import annotations

from airflow_provider_dtrain.core.config.merge import RESET, Override, merge_config, merge_layers, merge_with_origins

__all__ = [
    "RESET",
    "Override",
    "merge_config",
    "merge_layers",
    "merge_with_origins",
]
