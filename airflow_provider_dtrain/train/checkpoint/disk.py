"""Checkpoints on disk, which are complete or do not exist.

A checkpoint is a folder ``step-<step>`` with ``state.pt``, ``rng.pt``, ``metadata.json``, and in some cases
``pending.pt`` and ``others.pt``. Tensors are in ``rank-*.safetensors``, with ``tensors.json`` as their index, and
``state.pt`` has their keys in their places, and what ``state_values`` describes in the place of other values.

A checkpoint is written under a name that starts with a dot, fsynced and renamed. ``metadata.json`` holds the size and
sha256 of each file, and a checksum of itself. Files are loaded with ``weights_only=True``: no pickle of a checkpoint is
ever run. A checkpoint of the kind ``files`` has the files that a program wrote itself, at any depth.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint.checkpoint_file import describe, save_file
from airflow_provider_dtrain.train.checkpoint.description import (
    METADATA,
    METADATA_LIMIT_BYTES,
    Checkpoint,
    metadata_text,
    next_name,
    parse,
    step_name,
)
from airflow_provider_dtrain.train.errors import CheckpointError, CheckpointStorageError, DamagedCheckpointError

STATE = "state.pt"
RNG = "rng.pt"
#: Gradients of each rank of an unfinished group of batches. The file exists only if there are any.
PENDING = "pending.pt"
#: States of prepared objects that differ between the ranks, for each rank. The file exists only if there are any.
OTHERS = "others.pt"
#: Suffixes of folders that are not checkpoints.
TEMPORARY = ".tmp"
DELETED = ".deleted"
#: Most threads that compute checksums at once.
_MOST_READERS = 8


def begin(folder: Path, step: int) -> Path:
    """Create the folder in which a checkpoint is written before it is renamed, and return its path.

    :raises CheckpointError: the disk rejects it
    """
    temporary = folder / f".step-{step}.{os.getpid()}{TEMPORARY}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(mode=0o700)
    except OSError as error:
        raise _cannot_write(folder, step, error) from error
    return temporary


def write(
    folder: Path,
    step: int,
    contents: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    final: Path | None = None,
    temporary: Path | None = None,
    more: Callable[[], Mapping[str, Any]] | None = None,
) -> Checkpoint:
    """Write a checkpoint. Return it once it is complete and on disk.

    :param folder: folder for checkpoints of this trial
    :param contents: file name -> bytes, a :class:`TensorFile`, or an object that ``torch.save`` writes
    :param facts: entries for the metadata
    :param final: path of the checkpoint; default: :func:`free_name`
    :param temporary: return value of :func:`begin`, if it was called
    :param more: returns the files that other ranks have written to ``temporary``, once they are on disk
    :raises CheckpointError: an object cannot be loaded without pickle, or the disk rejects the write
    """
    temporary = temporary or begin(folder, step)
    try:
        files = {name: save_file(temporary / name, value) for name, value in contents.items()}
        files.update(more() if more is not None else {})
        text = metadata_text(step, facts, files)
        _write_synced(temporary / METADATA, text)
        sync_folder(temporary)
        final = final or free_name(folder, step)
        temporary.rename(final)
        sync_folder(folder)
        _sync_parents(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _cannot_write(folder, step, error) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return parse(text, final)


def write_tree(folder: Path, step: int, facts: Mapping[str, Any], final: Path) -> Checkpoint:
    """Make a folder of finished files a checkpoint. Return it once it is complete and on disk.

    :param folder: on the same file system as ``final``
    :raises CheckpointError: the disk rejects it; nothing is at ``final``
    """
    try:
        files = {}
        for base, _, names in os.walk(folder):
            for name in names:
                path = Path(base, name)
                files[path.relative_to(folder).as_posix()] = describe(path, sync=True)
        text = metadata_text(step, facts, dict(sorted(files.items())))
        _write_synced(folder / METADATA, text)
        for base, _, _ in os.walk(folder, topdown=False):
            sync_folder(Path(base))
        folder.rename(final)
        sync_folder(final.parent)
        _sync_parents(final.parent)
    except OSError as error:
        raise CheckpointStorageError(f"The checkpoint of step {step} cannot be written to {final}: {error}") from error
    return parse(text, final)


def _cannot_write(folder: Path, step: int, error: OSError) -> CheckpointError:
    return CheckpointStorageError(f"The checkpoint of step {step} cannot be written below {folder}: {error}")


def read(path: Path) -> Checkpoint:
    """Return a checkpoint's description. Only its metadata is read.

    :raises DamagedCheckpointError: the metadata is missing or differs from what was written
    """
    try:
        with open(path / METADATA, "rb") as file:
            text = file.read(METADATA_LIMIT_BYTES + 1)
    except OSError as error:
        raise DamagedCheckpointError(f"{path.name}: {METADATA} cannot be read ({error})") from error
    return parse(text, path)


def whole(path: Path) -> Checkpoint:
    """Return a checkpoint after a check of its files.

    :raises DamagedCheckpointError: the checkpoint is incomplete or differs from what was written
    """
    checkpoint = read(path)
    verify(checkpoint)
    return checkpoint


def verify(checkpoint: Checkpoint) -> None:
    """Check every file against its digest. Several files are read at once.

    :raises DamagedCheckpointError: a file is missing, shorter, or different
    """
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


def free_name(folder: Path, step: int) -> Path:
    """Return a path that no checkpoint has yet, and that sorts behind those of the same step."""
    return folder / next_name(step, [path.name for path in folder.glob(f"{step_name(step)}*")])


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@lru_cache(maxsize=16)
def _sync_parents(folder: Path) -> None:
    """Make a folder itself durable, once: it and its parents may be as new as the checkpoint in it."""
    for parent in folder.absolute().parents:
        # A folder that this account cannot read is not its own.
        with contextlib.suppress(OSError):
            sync_folder(parent)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
