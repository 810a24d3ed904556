"""Weights of one checkpoint for a model: ``dtrain.load_weights(model, where)``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import description, reading, storage, warm_start
from airflow_provider_dtrain.train.checkpoint.tensor_source import TensorSource
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.files.file_systems import is_url
from airflow_provider_dtrain.train.values import JsonObject


def load_weights(
    model: Any,
    where: str | Path | Mapping[str, Any],
    *,
    index: int = 0,
    storage_config: Mapping[str, Any] | None = None,
) -> JsonObject:
    """Load the parameters and buffers of a checkpoint into a model. Return the checkpoint's metadata.

    Each process reads the checkpoint itself. Nothing is unpickled.

    :param model: a module whose parameters have the names and shapes of those in the checkpoint
    :param where: folder or URL of a checkpoint, or the XCom of a trial, whose best checkpoint counts
    :param index: number of the model, in the order in which the training prepared its models
    :param storage_config: ``checkpoint_storage`` of a configuration, for credentials of a URL
    :raises CheckpointError: the checkpoint is damaged, or does not fit the model; nothing is loaded
    """
    place = place_of(where)
    with tempfile.TemporaryDirectory(prefix="dtrain-weights-") as scratch:
        found = storage.reader(place, storage_config or {})(Path(scratch))
        description.refuse_files(found)
        alone = Distributed(RankEnvironment())
        put(model, *reading.open_state(found, found.metadata, alone), index, str(place))
        return dict(found.metadata)


def place_of(where: str | Path | Mapping[str, Any]) -> str | Path:
    """Return the folder or URL of a checkpoint.

    :param where: the same, or the XCom of a trial
    :raises CheckpointError: the trial has no checkpoint
    """
    if not isinstance(where, Mapping):
        return where if is_url(where) else Path(where)
    found = where.get("checkpoint")
    if not isinstance(found, str) or not found:
        raise CheckpointError(f"The trial {where.get('trial_id')} has no checkpoint. Give the path or URL of one.")
    return place_of(found)


def put(model: Any, skeleton: Mapping[str, Any], source: TensorSource, index: int, name: str) -> None:
    """Load the weights of a checkpoint into a model.

    :param skeleton: state of the checkpoint without its tensors
    :param name: the checkpoint, for messages
    :raises CheckpointError: the checkpoint has no model of this number, or does not fit
    """
    warm_start.load_weights([model], {"models": [model_of(skeleton, index, name)]}, source, name)


def model_of(skeleton: Mapping[str, Any], index: int, name: str) -> Mapping[str, Any]:
    """Return the state of one model without its tensors.

    :raises CheckpointError: the checkpoint has no model of this number
    """
    models = skeleton.get("models", [])
    if not 0 <= index < len(models):
        raise CheckpointError(f"The checkpoint ({name}) holds {len(models)} models, so it has no model {index}.")
    return dict(models[index])
