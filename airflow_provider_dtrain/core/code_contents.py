"""Contents of packed code: its files with their kinds, and bytes of some of them."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from airflow_provider_dtrain.core.code_files import FILES_MOST, path_of, visible_path
from airflow_provider_dtrain.errors import PayloadError

#: Bytes at the begin of a file that decide whether it is text, as git does it.
_HEAD_BYTES: Final = 8000


@dataclass(frozen=True, kw_only=True)
class PackedFile:
    """A file in an archive of code."""

    path: str
    size_bytes: int
    #: Of a link, None for a file.
    target: str | None
    is_text: bool
    is_program: bool
    #: Its first bytes; None: they were not read.
    content: bytes | None


def packed_files(archive: bytes, read: Collection[str] = (), limit_bytes: int = 0) -> tuple[dict[str, PackedFile], int]:
    """Return path -> file of a tar.gz, and the number of files beyond the limit.

    :param read: paths of files whose content is read
    :param limit_bytes: most bytes of the content of each
    :raises PayloadError: the archive cannot be read
    """
    # Of several entries with one path, hosts keep the last one.
    found: dict[str, PackedFile] = {}
    more = 0
    for tar, member in _members(archive):
        path = path_of(member)
        if path not in found and len(found) == FILES_MOST:
            more += 1
            continue
        is_read = path in read and member.isreg()
        head = _bytes(tar, member, max(_HEAD_BYTES, limit_bytes) if is_read else _HEAD_BYTES)
        found[path] = PackedFile(
            path=path,
            size_bytes=member.size,
            target=visible_path(member.linkname) if member.issym() else None,
            is_text=member.isreg() and is_text(head[:_HEAD_BYTES]),
            is_program=member.isreg() and bool(member.mode & 0o100),
            content=head[:limit_bytes] if is_read else None,
        )
    return found, more


def is_text(head: bytes) -> bool:
    """Return whether the first bytes of a file are text: no zero byte, and UTF-8 up to a character that is cut."""
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def _members(archive: bytes) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r|gz") as tar:
            for member in tar:
                if member.isreg() or member.issym():
                    yield tar, member
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise PayloadError(f"The stored code cannot be read: {error}. Run the task again: it packs it again.") from None


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo, limit_bytes: int) -> bytes:
    # A link has no content, and the file to which it leads may be behind it.
    content = tar.extractfile(member) if member.isreg() else None
    return b"" if content is None else content.read(limit_bytes)
