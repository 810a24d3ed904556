"""Files and archives as streams: read in threads of their own, each piece with a deadline."""

from __future__ import annotations

import logging
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote

from fastapi.responses import StreamingResponse

from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.execution import Workers
from airflow_provider_dtrain.core.regular_files import open_below

log = logging.getLogger(__name__)

BYTES = "application/octet-stream"
#: End of a tar archive.
TAR_END = bytes(2 * tarfile.BLOCKSIZE)
#: Downloads of this process at one time; each uses a thread while it reads a piece.
DOWNLOADS = 4
PIECE_BYTES = 1 << 20
PIECE_DEADLINE_S = 60.0
#: Most files of one archive.
FILES_MOST = 10_000


def file_pieces(root: Path, relative: str) -> Iterator[bytes]:
    """Yield the content of a regular file below a folder. The file is opened at once.

    :raises OSError: there is no such file, or a part of the path is a link
    """
    return _read(open_below(root, relative))


def _read(descriptor: int) -> Iterator[bytes]:
    with os.fdopen(descriptor, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def tar_pieces(root: Path, name: str) -> Iterator[bytes]:
    """Yield a folder as a tar archive with regular files only. Links and other files are left out.

    :param name: folder of the files in the archive
    """
    for relative in files_below(root):
        descriptor = open_below(root, relative)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            yield from member_pieces(f"{name}/{relative}", file, state.st_size, state.st_mtime)
    yield TAR_END


def member_pieces(name: str, file: IO[bytes], size_bytes: int, modified_s: float) -> Iterator[bytes]:
    """Yield one member of a tar archive."""
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size_bytes, int(modified_s), 0o644
    yield member.tobuf(tarfile.PAX_FORMAT)
    left = size_bytes
    while left and (piece := file.read(min(PIECE_BYTES, left))):
        left -= len(piece)
        yield piece
    # A file that has become shorter is filled up: an archive of the wrong length cannot be read at all.
    yield from _zeros(left + -size_bytes % tarfile.BLOCKSIZE)


def _zeros(count: int) -> Iterator[bytes]:
    while count:
        piece = min(PIECE_BYTES, count)
        count -= piece
        yield bytes(piece)


def files_below(root: Path) -> list[str]:
    """Return the regular files below a folder, sorted, at most :data:`FILES_MOST`. Links are not followed."""
    found: list[str] = []
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            if stat.S_ISREG(path.lstat().st_mode):
                found.append(str(path.relative_to(root)))
        if len(found) > FILES_MOST:
            return found[:FILES_MOST]
    return found


def download(
    pieces: Iterator[bytes], workers: Workers, filename: str, size_bytes: int | None = None
) -> StreamingResponse:
    """Return an answer that a browser saves as a file, and never shows or runs. Reads the first piece.

    :raises ApiError: the first piece cannot be read
    """
    try:
        first = next(pieces, b"")
    except Exception as error:
        log.warning("A download of %s failed", filename, exc_info=True)
        words = f"The file cannot be read: {type(error).__name__}."
        raise ApiError(503, "gone", words, "The cause is in the log of the API server.") from error
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in filename)[-150:] or "download"
    quoted = quote(filename[-150:], safe="")
    headers = {
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quoted}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-store",
        # Airflow's server would compress the stream in its event loop.
        "Content-Encoding": "identity",
    }
    if size_bytes is not None:
        headers["Content-Length"] = str(size_bytes)
    return StreamingResponse(_streamed(first, pieces, workers), media_type=BYTES, headers=headers)


async def _streamed(first: bytes, pieces: Iterator[bytes], workers: Workers) -> AsyncIterator[bytes]:
    yield first
    while (
        piece := await workers.run(lambda: next(pieces, None), deadline_s=PIECE_DEADLINE_S, is_write=False)
    ) is not None:
        yield piece
