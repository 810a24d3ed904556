"""Files as a tar archive that is written while it is read."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.regular_files import open_below

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

BLOCK_BYTES = 1 << 20


class _Sink(io.RawIOBase):
    """File that passes on the data that is written to it."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        super().__init__()
        self._put = put

    def write(self, data: Buffer, /) -> int:
        content = bytes(data)
        self._put(content)
        return len(content)


def pack(root: Path, paths: Iterable[str], put: Callable[[bytes], None], *, folder: str = "") -> None:
    """Write regular files below a folder as a tar archive, in pieces. Other files are left out.

    :param paths: relative to the folder
    :param put: receives the pieces in order
    :param folder: folder of the files in the archive; empty: none
    """
    with tarfile.open(mode="w|", fileobj=_Sink(put), bufsize=BLOCK_BYTES, format=tarfile.PAX_FORMAT) as archive:
        for path in paths:
            with os.fdopen(open_below(root, path), "rb") as file:
                state = os.fstat(file.fileno())
                if not stat.S_ISREG(state.st_mode):
                    continue
                member = tarfile.TarInfo(f"{folder}/{path}" if folder else path)
                member.size, member.mtime, member.mode = state.st_size, int(state.st_mtime), 0o644
                archive.addfile(member, file)


def files_below(root: Path) -> list[str]:
    """Return the regular files below a folder, sorted. Links are not followed."""
    found: list[str] = []
    for folder, _, names in os.walk(root, followlinks=False):
        paths = (Path(folder) / name for name in names)
        found += [str(path.relative_to(root)) for path in paths if stat.S_ISREG(path.lstat().st_mode)]
    return sorted(found)
