"""Experiment configuration: models, validation, origins of values, masking of secrets, unsupported fields."""

from __future__ import annotations

from airflow_provider_dtrain.core.config.assembly import (
    PROVIDER_DEFAULTS,
    Effective,
    assemble,
    effective_document,
    incomplete,
    validate_partial,
)
from airflow_provider_dtrain.core.config.determined_compat import normalize
from airflow_provider_dtrain.core.config.experiment import ExperimentConfig, ForeignFieldWarning
from airflow_provider_dtrain.core.config.secrets import (
    MASK,
    literal_secrets,
    mask,
    put_secrets,
    take_secrets,
)
from airflow_provider_dtrain.core.config.unsupported import UNSUPPORTED, refuse_unsupported, unsupported

__all__ = [
    "MASK",
    "PROVIDER_DEFAULTS",
    "UNSUPPORTED",
    "Effective",
    "ExperimentConfig",
    "ForeignFieldWarning",
    "assemble",
    "effective_document",
    "incomplete",
    "literal_secrets",
    "mask",
    "normalize",
    "put_secrets",
    "refuse_unsupported",
    "take_secrets",
    "unsupported",
    "validate_partial",
]
