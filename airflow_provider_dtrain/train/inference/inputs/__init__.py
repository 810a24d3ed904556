"""Inputs of a batch inference: files of several formats, or a data set from code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.inference.inputs.batch import Input, InputBatch
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.inputs.sources import Sources
from airflow_provider_dtrain.train.inference.inputs.stored import StoredInput

__all__ = ["Input", "InputBatch", "open_input"]


def open_input(settings: Mapping[str, Any], *, storage: Mapping[str, Any], passed: Sequence[str] = ()) -> Input:
    """Return the input that the configuration names. Nothing is read before its first call.

    :param settings: ``inference.inputs``
    :param storage: ``checkpoint_storage``, whose credentials serve URLs of the same kind
    :param passed: ``inference.outputs.columns``. They are read too, but given to the processor only if
        ``inputs.columns`` has them or is not set.
    :raises InputError: a setting is not valid
    """
    return StoredInput(InputSettings.parse(settings, passed), Sources(storage))
