"""Files of a checkpoint: written with their size and sha256, and free of pickles."""

from __future__ import annotations

import pickle
import re
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from airflow_provider_dtrain.train.checkpoint.tensor_file import TensorFile
from airflow_provider_dtrain.train.errors import CheckpointError
from airflow_provider_dtrain.train.files.digests import Hashing
from airflow_provider_dtrain.train.files.place import Place
from airflow_provider_dtrain.train.values import FileFacts


def dump(value: Any, file: IO[bytes]) -> FileFacts:
    """Write bytes, a :class:`TensorFile`, or another value as ``torch.save`` does. Return size and sha256 of the bytes.

    :raises OSError: the file rejects a write
    """
    import torch

    hashing = _Remembering(file)
    failed = None
    try:
        if isinstance(value, TensorFile):
            value.write(hashing)
        elif isinstance(value, bytes):
            hashing.write(value)
        else:
            torch.save(value, cast("IO[bytes]", hashing))
    except (RuntimeError, OSError) as error:
        failed = hashing.error or error
    if failed is not None:
        # torch reports a full disk as its own RuntimeError.
        raise failed
    return hashing.description()


class _Remembering(Hashing):
    """Keeps the error that torch's writer replaces by its own."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = self.error or error
            raise


def save(place: Place, begun: Any, name: str, value: Any) -> FileFacts:
    """Write one file of a checkpoint, durably. Return its size and sha256.

    :param begun: return value of ``Place.begin``
    :param value: bytes, a :class:`TensorFile`, or an object that ``torch.save`` writes
    :raises CheckpointError: the object cannot be loaded without pickle
    :raises OSError: the storage rejects the write
    """
    description = place.save(begun, name, partial(dump, value))
    if isinstance(begun, Path) and not isinstance(value, (TensorFile, bytes)):
        _refuse_unsafe_file(begun / name)
    return description


def unsafe_types(file: Any) -> list[str]:
    """Return the types in a file that ``torch.load(weights_only=True)`` refuses.

    :param file: a path, or an open file
    """
    import torch

    # Reads only the few bytes outside tensors. Versions of torch before 2.5 lack this function.
    find_unsafe = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", _refused_globals)
    return sorted(find_unsafe(file if hasattr(file, "read") else str(file)))


def _refuse_unsafe_file(path: Path) -> None:
    """Raise unless ``torch.load(weights_only=True)`` can read a file.

    :raises CheckpointError: names the types that it holds
    """
    unsafe = unsafe_types(path)
    if unsafe:
        raise CheckpointError(
            f"{path.name} of the checkpoint holds {', '.join(unsafe)}, which a checkpoint must not hold, because only "
            "a pickle could load it. Keep tensors, numbers, strings, lists and dicts in it."
        )


def _refused_globals(file: Any) -> list[str]:
    """Return the type at which ``torch.load(weights_only=True)`` stops, found by a load of the whole file."""
    import torch

    try:
        torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.findall(r"(?:GLOBAL|global|class) (\S+\.\S+)", str(error))
        return [named[0].rstrip(".") if named else str(error).strip().splitlines()[-1][:200]]
    return []
