"""Export of a checkpoint's weights as one safetensors file: ``dtrain.export_weights(where, file)``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint import description, reading, storage
from airflow_provider_dtrain.train.checkpoint.state_values import wrapped_shape
from airflow_provider_dtrain.train.checkpoint.tensor_file import DTYPES, TensorSlot, header, memory
from airflow_provider_dtrain.train.checkpoint.tensor_source import TensorSource
from airflow_provider_dtrain.train.checkpoint.tensor_tree import key_of
from airflow_provider_dtrain.train.checkpoint.weights import model_of, place_of
from airflow_provider_dtrain.train.distributed import Distributed
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import CheckpointError


def export_weights(
    where: str | Path | Mapping[str, Any],
    file: str | Path,
    *,
    index: int = 0,
    storage_config: Mapping[str, Any] | None = None,
) -> Path:
    """Write the parameters and buffers of a checkpoint to one safetensors file. Return its path.

    One process calls it. It holds a few megabytes of the weights at a time, however many ranks have saved them. Tied
    tensors are written once: the first of their names has them, and ``__metadata__`` maps each other name to it, as
    ``safetensors.torch.save_model`` does.

    :param where: folder or URL of a checkpoint, or the XCom of a trial, whose best checkpoint counts
    :param file: path of the new file; an existing one is replaced once the new one is complete
    :param index: number of the model, in the order in which the training prepared its models
    :param storage_config: ``checkpoint_storage`` of a configuration, for credentials of a URL
    :raises CheckpointError: the checkpoint is damaged, has no such model, or the file cannot be written
    """
    place = place_of(where)
    target = Path(file)
    with tempfile.TemporaryDirectory(prefix="dtrain-weights-") as scratch:
        found = storage.reader(place, storage_config or {})(Path(scratch))
        description.refuse_files(found)
        skeleton, source = reading.open_state(found, found.metadata, Distributed(RankEnvironment()))
        saved = model_of(skeleton, index, str(place))
        partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            _write(partial, saved, source)
            os.replace(partial, target)
        except OSError as error:
            raise CheckpointError(f"The weights of {place} cannot be written to {target}: {error}") from error
        finally:
            partial.unlink(missing_ok=True)
    return target


def _write(path: Path, saved: Mapping[str, Any], source: TensorSource) -> None:
    """Write the tensors of a model's state.

    :param saved: the state without its tensors
    """
    slots: list[TensorSlot] = []
    keys: list[Any] = []
    first: dict[str, str] = {}
    tied: dict[str, str] = {}
    for name, value in saved.items():
        key = key_of(value)
        if key is not None and key in first:
            tied[name] = first[key]
        elif key is not None:
            first[key] = name
            slots.append(TensorSlot(name, DTYPES.by_dtype[source.dtype(key)], source.shape(key)))
            keys.append(key)
        else:
            slots.append(TensorSlot(name, _dtype_of(name, value), tuple(value.shape)))
            keys.append(value)
    with open(path, "xb") as file:
        file.write(header(slots, tied)[0])
        for key in keys:
            for piece in source.pieces(key) if isinstance(key, str) else [key]:
                file.write(memory(piece.contiguous()))
        file.flush()
        os.fsync(file.fileno())


def _dtype_of(name: str, value: Any) -> str:
    """Return the name of a tensor's type in the file.

    :raises CheckpointError: the value is no tensor, or no tensor of a type that the format has
    """
    import torch

    is_usual = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized
    if not is_usual or value.dtype not in DTYPES.by_dtype:
        wrapped = wrapped_shape(value)
        kind = type(value).__name__ if wrapped is None else wrapped[0]
        if isinstance(value, torch.Tensor):
            kind = f"tensor of {value.dtype}"
        raise CheckpointError(
            f"A safetensors file holds plain tensors, and {name} of the model is a {kind}. Load the checkpoint with "
            "dtrain.load_weights(model, where) instead."
        )
    return DTYPES.by_dtype[value.dtype]
