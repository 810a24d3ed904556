"""Inputs of a batch inference: files of several formats, or a data set from code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs.batch import BadRow, Input, InputBatch
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.inputs.sources import Sources
from airflow_provider_dtrain.train.inference.inputs.stored import StoredInput

__all__ = ["BadRow", "Input", "InputBatch", "open_input"]


def open_input(
    settings: Mapping[str, Any] | None,
    *,
    storage: Mapping[str, Any],
    dataset: Any = None,
    collate: Any = None,
    passed: Sequence[str] = (),
    batch_size: int | None = None,
    skips_bad_rows: bool = False,
    writes_json: bool = False,
) -> Input:
    """Return the input that the configuration names, or a data set from code. Files are not read before a call.

    :param settings: ``inference.inputs``; None: the data set is the input. Of a data set's settings, only
        ``shard_rows`` counts.
    :param storage: ``checkpoint_storage``, whose credentials serve URLs of the same kind
    :param dataset: map-style or iterable, or a torch ``DataLoader``, whose data set and collate function are taken
    :param collate: from a list of samples to a batch; default: that of torch
    :param passed: ``inference.outputs.columns``. They are read too, but given to the processor only if
        ``inputs.columns`` has them or is not set.
    :param batch_size: rows of a batch, for shards of whole batches; None: not known yet
    :param skips_bad_rows: leave out rows of files that cannot be read
    :param writes_json: the output is JSON lines
    :raises InputError: a setting is not valid
    """
    if settings is not None and settings.get("path"):
        if dataset is not None:
            raise InputError("The processor builds a data set and inputs.path is set. Remove one of them.")
        parsed = InputSettings.parse(
            settings, passed, batch_size, skips_bad_rows=skips_bad_rows, writes_json=writes_json
        )
        return StoredInput(parsed, Sources(storage))
    if dataset is None:
        raise InputError("There is no input: set inputs.path, or build a data set in the processor.")
    if passed:
        raise InputError(
            f"outputs.columns is {list(passed)}, but a data set from code has no columns to pass through. Return them "
            "from process_batch, or set outputs.row_id."
        )
    from airflow_provider_dtrain.train.inference.inputs.datasets import open_dataset

    opened: Input = open_dataset(dataset, collate, (settings or {}).get("shard_rows"), batch_size)
    return opened
