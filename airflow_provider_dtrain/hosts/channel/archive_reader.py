"""Unpacking of archives from hosts on the control side: bounded, plain files and folders only, never links."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from airflow_provider_dtrain.supervisor.files.archives import bad_archive, member_parts, real_parent, unpack_file
from airflow_provider_dtrain.supervisor.refusal import Refused

#: Maximum size of an extended header: enough for a path of 4,096 characters and the fields that pax adds.
HEADER_LIMIT = 64 * 1024
#: Maximum number of extended headers of one member, and of global ones of an archive. Writers make two and one.
CHAIN_LIMIT = 8
#: Maximum overhead of a member besides its content: headers, extended headers of usual length, padding.
_PER_MEMBER = 8 * 1024
#: Maximum number of folders above a file: each name of a path makes a folder.
DEPTH_LIMIT = 32
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class ArchiveLimitError(tarfile.TarError):
    """An archive exceeds its limits."""


class ByteSource(Protocol):
    """Source of bytes."""

    def read(self, count: int = -1, /) -> bytes:
        """Return the next ``count`` bytes, or fewer at the end."""


class _Archive(tarfile.TarFile):
    """Archive that counts its extended headers.

    tarfile stores global ones in memory, and reads a chain of extended headers recursively.
    """

    chained = 0
    globals = 0


class _Header(tarfile.TarInfo):
    """Header whose extension is bounded before it is read."""

    def _proc_member(self, archive: _Archive) -> tarfile.TarInfo:
        if self.type in _EXTENDED and not 0 <= self.size <= HEADER_LIMIT:
            raise ArchiveLimitError(f"an extended header of {self.size} bytes, at most {HEADER_LIMIT} are read")
        archive.chained = archive.chained + 1 if self.type in _EXTENDED else 0
        archive.globals += self.type == tarfile.XGLTYPE
        if max(archive.chained, archive.globals) > CHAIN_LIMIT:
            raise ArchiveLimitError(f"more than {CHAIN_LIMIT} extended headers of one member, or global ones")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.TarError("a sparse file, but only plain files are accepted")
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return found

    def _proc_pax(self, archive: _Archive) -> tarfile.TarInfo:
        """Return the next member with the path, size and time of this header. Global headers have no effect.

        tarfile's own method takes quadratic time for some headers in Python 3.11.7, and reads the map of a sparse file
        without a size limit.
        """
        body = archive.fileobj.read(self._block(self.size))  # type: ignore[attr-defined]
        records = dict(_pax_records(body[: self.size]))
        if any(key.startswith(b"GNU.sparse.") for key in records):
            raise tarfile.TarError("a sparse file, but only plain files are accepted")
        try:
            found = self.fromtarfile(archive)
        except tarfile.HeaderError as error:
            # Otherwise tarfile takes it for the end of the archive.
            raise tarfile.ReadError(f"no member after an extended header: {error}") from None
        if self.type == tarfile.XGLTYPE:
            return found
        found.offset = self.offset
        if b"path" in records:
            found.name = records[b"path"].decode("utf-8", "surrogateescape").rstrip("/")
        if b"mtime" in records:
            found.mtime = float(records[b"mtime"])
        if b"size" in records:
            _resize(archive, found, records[b"size"])
        return found


def _pax_records(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of an extended header: ``<length> <key>=<value>`` and a line end each.

    :raises tarfile.TarError: a record has another form, or its length leads beyond the header
    """
    start = 0
    while start < len(body):
        # HEADER_LIMIT has five digits.
        digits, blank, _ = body[start : start + 6].partition(b" ")
        end = start + int(digits) if blank and digits.isdigit() else 0
        key, equals, value = body[start + len(digits) + 1 : max(0, end - 1)].partition(b"=")
        if not start < end <= len(body) or not key or not equals or body[end - 1 : end] != b"\n":
            raise tarfile.TarError(f"the extended header is damaged at byte {start}")
        yield key, value
        start = end


def _resize(archive: _Archive, member: tarfile.TarInfo, digits: bytes) -> None:
    """Give a member the size that its extended header states, and set where the next header begins."""
    if not digits.isdigit():
        raise tarfile.TarError("the extended header has a size that is not a number")
    member.size = int(digits)
    has_content = member.isreg() or member.type not in tarfile.SUPPORTED_TYPES
    skipped = member._block(member.size) if has_content else 0  # type: ignore[attr-defined]
    archive.offset = member.offset_data + skipped


class _Counted:
    """Source that raises an error after a number of bytes."""

    def __init__(self, source: ByteSource, limit: int) -> None:
        self._source = source
        self._left = limit

    def read(self, count: int = -1) -> bytes:
        data = self._source.read(count)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveLimitError("more bytes arrived than an archive within the limits can have")
        return data


def unpack_plain(source: ByteSource, folder: Path, *, limit_bytes: int, limit_files: int) -> None:
    """Unpack a tar into an existing folder while it arrives.

    The caller removes the folder if it raises, and syncs it before it counts on the files.

    :param limit_bytes: maximum total size of the files
    :param limit_files: maximum number of files, and of folders
    :raises ArchiveLimitError: the archive exceeds a limit
    :raises tarfile.TarError: the archive is damaged, has paths outside the folder, or has links or devices
    """
    counted = _Counted(source, limit_bytes + 2 * limit_files * _PER_MEMBER + 2 * HEADER_LIMIT)
    files = folders = size = 0
    try:
        with _Archive.open(fileobj=counted, mode="r|", tarinfo=_Header) as archive:  # type: ignore[call-overload]
            for member in archive:
                # tarfile needs the list of members only for seeking.
                archive.members = []
                files += not member.isdir()
                folders += member.isdir()
                size += max(0, member.size)
                if size > limit_bytes:
                    raise ArchiveLimitError(f"more than {limit_bytes} bytes")
                if max(files, folders) > limit_files:
                    raise ArchiveLimitError(f"more than {limit_files} files")
                _unpack_member(archive, member, str(folder))
    except (Refused, ValueError, OverflowError, EOFError) as error:
        # tarfile itself raises the last three for some damaged headers.
        raise tarfile.TarError(f"the archive is damaged or not plain: {error}") from error


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    parts = member_parts(member.name)
    if not member.isdir() and (member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse()):
        raise bad_archive(member.name, "is neither a file nor a folder")
    if not parts:
        return
    if len(parts) > DEPTH_LIMIT or member.size < 0:
        raise bad_archive(member.name, f"is below more than {DEPTH_LIMIT} folders, or has a negative size")
    path = os.path.join(real_parent(root, parts, member.name), parts[-1])
    if member.isdir():
        os.makedirs(path, mode=0o700, exist_ok=True)
        return
    if os.path.lexists(path):
        raise bad_archive(member.name, "occurs twice")
    unpack_file(archive, member, path)


def sync_tree(folder: Path) -> None:
    """Sync the files and names below a folder to disk."""
    for base, _, names in os.walk(folder):
        for name in names:
            sync_path(os.path.join(base, name))
        sync_path(base)


def sync_path(path: str | Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def tree_bytes(folder: Path) -> int:
    """Return the total size of all files below a folder, without following links.

    The size of a missing folder is 0.
    """
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(base, name))
            except FileNotFoundError:
                continue
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def pack_tree(folder: Path, target: IO[bytes], name: str) -> None:
    """Write a tar of a folder's plain files and folders, with ``name`` as its root."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return member if member.isreg() or member.isdir() else None

    with tarfile.open(fileobj=target, mode="w|") as archive:
        archive.add(folder, arcname=name, filter=plain)
