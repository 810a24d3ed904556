"""Checkpoints on disk, which are complete or do not exist.

A checkpoint is a folder ``step-<step>`` with ``state.pt``, ``rng.pt``, ``metadata.json``, and in some cases
``pending.pt`` and ``others.pt``. Tensors are in ``rank-*.safetensors``, with ``tensors.json`` as their index, and
``state.pt`` has their keys in their places, and what ``state_values`` describes in the place of other values.

A checkpoint is written under a name that starts with a dot, fsynced and renamed. ``metadata.json`` holds the size and
sha256 of each file, and a checksum of itself. Files are loaded with ``weights_only=True``: no pickle of a checkpoint is
ever run. A checkpoint of the kind ``files`` has the files that a program wrote itself, at any depth.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint.description import METADATA, METADATA_LIMIT_BYTES, SavedCheckpoint, parse
from airflow_provider_dtrain.train.errors import DamagedCheckpointError
from airflow_provider_dtrain.train.files.digests import describe

STATE = "state.pt"
RNG = "rng.pt"
#: Gradients of each rank of an unfinished group of batches. The file exists only if there are any.
PENDING = "pending.pt"
#: States of prepared objects that differ between the ranks, for each rank. The file exists only if there are any.
FURTHER = "others.pt"
#: Most threads that compute checksums at once.
_MOST_READERS = 8


def read(path: Path) -> SavedCheckpoint:
    """Return a checkpoint's description. Only its metadata is read.

    :raises DamagedCheckpointError: the metadata is missing or differs from what was written
    """
    try:
        with open(path / METADATA, "rb") as file:
            text = file.read(METADATA_LIMIT_BYTES + 1)
    except OSError as error:
        raise DamagedCheckpointError(f"{path.name}: {METADATA} cannot be read ({error})") from error
    return parse(text, path)


def whole(path: Path) -> SavedCheckpoint:
    """Return a checkpoint after a check of its files.

    :raises DamagedCheckpointError: the checkpoint is incomplete or differs from what was written
    """
    checkpoint = read(path)
    verify(checkpoint)
    return checkpoint


def verify(checkpoint: SavedCheckpoint) -> None:
    """Check every file against its digest. Several files are read at once.

    :raises DamagedCheckpointError: a file is missing, shorter, or different
    """
    # Imported here, because a trial that does not resume need not wait for it.
    from concurrent.futures import ThreadPoolExecutor

    files = checkpoint.metadata["files"]
    with ThreadPoolExecutor(max(1, min(len(files), os.cpu_count() or 1, _MOST_READERS))) as readers:
        # The first damaged file in the order of the metadata is named.
        for _ in readers.map(lambda item: _verify_file(checkpoint.path, *item), files.items()):
            pass


def _verify_file(folder: Path, name: str, expected: Mapping[str, Any]) -> None:
    try:
        found = describe(folder / name)
    except OSError as error:
        raise DamagedCheckpointError(f"{folder.name}: {name} cannot be read ({error})") from error
    if found != expected:
        what = next(key for key in expected if found.get(key) != expected[key])
        raise DamagedCheckpointError(
            f"{folder.name}: {what} of {name} is {found.get(what)}, but {expected[what]} was written"
        )
