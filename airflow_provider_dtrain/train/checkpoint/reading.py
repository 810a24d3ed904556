"""Reading of a checkpoint that rank 0 has found, by all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.checkpoint import description, disk, state_values
from airflow_provider_dtrain.train.checkpoint.tensor_index import INDEX, TensorIndex
from airflow_provider_dtrain.train.checkpoint.tensor_source import TensorSource, visible_folder
from airflow_provider_dtrain.train.checkpoint.tensor_tree import keys
from airflow_provider_dtrain.train.distributed import Distributed, load_bytes
from airflow_provider_dtrain.train.errors import DamagedCheckpointError


def everywhere(found: description.SavedCheckpoint | None, name: str, distributed: Distributed) -> Any:
    """Return the object in a file of a checkpoint, loaded without running any pickle. Called by all ranks.

    :param found: the checkpoint, on rank 0
    :raises CheckpointError: the file holds more than a checkpoint can
    """
    content = _content(found, name, distributed)
    state = load_bytes(content)
    state_values.refuse_deep(state, f"{name} of the checkpoint", most=len(content))
    return state


def _content(found: description.SavedCheckpoint | None, name: str, distributed: Distributed) -> bytes:
    return distributed.broadcast_bytes((found.path / name).read_bytes() if found else None)


def open_state(
    found: description.SavedCheckpoint | None, metadata: Mapping[str, Any], distributed: Distributed
) -> tuple[Any, TensorSource]:
    """Return the state of a checkpoint without its tensors, and the source of these. Called by all ranks.

    :param found: the checkpoint, on rank 0
    :param metadata: its metadata
    :raises DamagedCheckpointError: the index of the tensors does not fit the files
    """
    state = everywhere(found, disk.STATE, distributed)
    files = metadata["files"]
    text = _content(found, INDEX, distributed) if INDEX in files else b"{}"
    index = TensorIndex.parse(text, files)
    missing = next((key for key in keys(state) if key not in index), None)
    if missing is not None:
        raise DamagedCheckpointError(f"{disk.STATE} has the tensor {missing}, which {INDEX} does not have")
    folder = visible_folder(found.path if found else None, distributed, disk.STATE)
    return state, TensorSource(index, folder, distributed)
