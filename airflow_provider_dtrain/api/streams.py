"""Files and archives as streams: read in threads of their own, each piece with a deadline.

A storage that hangs keeps these threads busy, and never those of other requests.
"""

from __future__ import annotations

import logging
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

from fastapi.responses import StreamingResponse

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.errors import ApiError
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


@dataclass(frozen=True, kw_only=True)
class OpenFile:
    """Content of a file that is open already."""

    pieces: Iterator[bytes]
    #: When it was opened. The content is never longer.
    size_bytes: int
    #: Time of its latest change, in seconds since 1970.
    modified_s: float


class ChangedError(OSError):
    """A file has become shorter while it was sent."""


def file_pieces(root: Path, relative: str) -> OpenFile:
    """Return the content of a regular file below a folder. The file is opened at once.

    :raises OSError: there is no such file, or a part of the path is a link
    """
    descriptor = open_below(root, relative)
    file = os.fdopen(descriptor, "rb")
    state = os.fstat(descriptor)
    return OpenFile(pieces=_exactly(file, state.st_size), size_bytes=state.st_size, modified_s=state.st_mtime)


def _exactly(file: IO[bytes], size_bytes: int) -> Iterator[bytes]:
    """Yield this many bytes of a file, and close it.

    :raises ChangedError: the file has become shorter. The connection is cut, so that the client sees a failed download
        and never a file with a wrong content
    """
    with file:
        left = size_bytes
        while left:
            piece = file.read(min(PIECE_BYTES, left))
            if not piece:
                raise ChangedError(0, f"the file has become shorter: {left} of {size_bytes} bytes are missing")
            left -= len(piece)
            yield piece


def tar_pieces(root: Path, name: str) -> Iterator[bytes]:
    """Yield a folder as a tar archive with regular files only. Links and other files are left out.

    :param name: folder of the files in the archive
    :raises ApiError: the folder has more files than an archive may have
    """
    for relative in files_below(root):
        descriptor = open_below(root, relative)
        state = os.fstat(descriptor)
        file = os.fdopen(descriptor, "rb")
        yield from member_pieces(f"{name}/{relative}", file, state.st_size, state.st_mtime)
    yield TAR_END


def member_pieces(name: str, file: IO[bytes], size_bytes: int, modified_s: float) -> Iterator[bytes]:
    """Yield one member of a tar archive, and close its file.

    :raises ChangedError: the file has become shorter
    """
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size_bytes, int(modified_s), 0o644
    yield member.tobuf(tarfile.PAX_FORMAT)
    yield from _exactly(file, size_bytes)
    yield bytes(-size_bytes % tarfile.BLOCKSIZE)


def files_below(root: Path) -> list[str]:
    """Return the regular files below a folder, sorted. Links are not followed.

    :raises ApiError: there are more than :data:`FILES_MOST`
    """
    found: list[str] = []
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            if stat.S_ISREG(path.lstat().st_mode):
                found.append(str(path.relative_to(root)))
        require_few(len(found))
    return found


def require_few(files: int) -> None:
    """Refuse an archive of too many files: a part of a checkpoint would look like a whole one.

    :raises ApiError: there are more than :data:`FILES_MOST`
    """
    if files > FILES_MOST:
        words = f"It has more than {FILES_MOST} files, the most that one archive may have."
        raise ApiError(409, "conflict", words, "Copy the folder with the tools of its storage.")


async def download(
    call: Call, pieces: Iterator[bytes], filename: str, size_bytes: int | None = None
) -> StreamingResponse:
    """Return an answer that a browser saves as a file, and never shows or runs. Reads the first piece.

    :raises ApiError: the first piece cannot be read
    """
    try:
        first = await call.read_file(lambda: next(pieces, b""), PIECE_DEADLINE_S)
    except ApiError:
        raise
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
    return StreamingResponse(_streamed(call, first, pieces), media_type=BYTES, headers=headers)


async def _streamed(call: Call, first: bytes, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    while (piece := await call.read_file(lambda: next(pieces, None), PIECE_DEADLINE_S)) is not None:
        yield piece
