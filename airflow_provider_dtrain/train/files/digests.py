"""Size and sha256 of files, while they are written and afterwards."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO, Any

from airflow_provider_dtrain.train.values import FileFacts

_CHUNK_BYTES = 1 << 20


class Hashing:
    """File that computes the size and sha256 of the bytes that are written to it.

    :param file: receives the bytes
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        """Write all of ``data``."""
        view = memoryview(data).cast("B")
        # Both release the GIL.
        self._digest.update(view)
        rest = view
        while rest.nbytes:
            rest = rest[self._file.write(rest) :]
        self._size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def description(self) -> FileFacts:
        """Return size and sha256 in the form of a checkpoint's metadata."""
        return {"size_bytes": self._size, "sha256": self._digest.hexdigest()}


def describe(path: Path, *, is_durable: bool = False) -> FileFacts:
    """Return size and sha256 of a file in the form of a checkpoint's metadata.

    :param is_durable: write the file to the disk first
    """
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb") as file:
        if is_durable:
            os.fsync(file.fileno())
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return {"size_bytes": size, "sha256": digest.hexdigest()}
