"""Unpacking on the control side of what a host sends: plain files and folders, bounded, never a link."""

from __future__ import annotations

import os
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from airflow_provider_dtrain.hosts import supervisor

#: Largest extended header: enough for a path of 4,096 characters and what pax adds to it.
HEADER_LIMIT = 64 * 1024
#: Extended headers of one member, and global ones of an archive; writers make two and one.
CHAIN_LIMIT = 8
#: What a member takes besides its content, at most: headers, extended headers of usual length, padding.
_PER_MEMBER = 8 * 1024
#: Folders above a file: each name of a path makes a folder.
DEPTH_LIMIT = 32
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class ArchiveLimitError(tarfile.TarError):
    """An archive holds more than was allowed."""


class Source(Protocol):
    """Something to read from."""

    def read(self, count: int = -1, /) -> bytes:
        """Return the next bytes, fewer at the end."""


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """Content of an archive, counted while it was written."""

    files: int
    size_bytes: int


class _Archive(tarfile.TarFile):
    """An archive that counts its extended headers: tarfile keeps global ones, and reads a chain of them recursively."""

    chained = 0
    globals = 0


class _Header(tarfile.TarInfo):
    """A header whose extension is bounded before it is read."""

    def _proc_member(self, archive: _Archive) -> tarfile.TarInfo:
        if self.type in _EXTENDED and not 0 <= self.size <= HEADER_LIMIT:
            raise ArchiveLimitError(f"an extended header of {self.size} bytes, at most {HEADER_LIMIT} are read")
        archive.chained = archive.chained + 1 if self.type in _EXTENDED else 0
        archive.globals += self.type == tarfile.XGLTYPE
        if max(archive.chained, archive.globals) > CHAIN_LIMIT:
            raise ArchiveLimitError(f"more than {CHAIN_LIMIT} extended headers of one member, or global ones")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.TarError("a sparse file, plain files are expected")
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return found

    def _refuse_sparse(self, *_: object) -> None:
        raise tarfile.TarError("a sparse file, plain files are expected")

    # The map of a sparse file in pax form is read from the member's content, as much as there is of it.
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class _Counted:
    """A source that ends with an error after a number of bytes."""

    def __init__(self, source: Source, limit: int) -> None:
        self._source, self._left = source, limit

    def read(self, count: int = -1) -> bytes:
        data = self._source.read(count)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveLimitError("more bytes came than the files that were announced can take")
        return data


def unpack_plain(source: Source, folder: Path, *, limit_bytes: int, limit_files: int) -> Unpacked:
    """Unpack a tar as it comes into a folder that is there; each file is on the disk when this returns.

    The caller removes the folder when this raises.

    :param limit_bytes: most that the files may have together
    :param limit_files: most files, and most folders
    :raises ArchiveLimitError: there is more than the limits allow
    :raises tarfile.TarError: the archive is damaged, leads outside, or has links or devices
    """
    counted = _Counted(source, limit_bytes + 2 * limit_files * _PER_MEMBER + 2 * HEADER_LIMIT)
    files = folders = size = 0
    try:
        with _Archive.open(fileobj=counted, mode="r|", tarinfo=_Header) as archive:  # type: ignore[call-overload]
            for member in archive:
                # The list of what was read is only needed for seeking.
                archive.members = []
                files, folders = files + (not member.isdir()), folders + member.isdir()
                size += max(0, member.size)
                if size > limit_bytes:
                    raise ArchiveLimitError(f"more than {limit_bytes} bytes")
                if max(files, folders) > limit_files:
                    raise ArchiveLimitError(f"more than {limit_files} files")
                _unpack_member(archive, member, str(folder))
    except (supervisor.Refused, ValueError, OverflowError, EOFError) as error:
        # The last three are what tarfile itself raises for some damaged headers.
        raise tarfile.TarError(f"the archive is damaged or not plain: {error}") from error
    sync_tree(folder)
    return Unpacked(files=files, size_bytes=size)


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    parts = supervisor.member_parts(member.name)
    if not member.isdir() and (member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse()):
        raise supervisor.bad_archive(member.name, "is neither a file nor a folder")
    if not parts:
        return
    if len(parts) > DEPTH_LIMIT or member.size < 0:
        raise supervisor.bad_archive(member.name, f"lies deeper than {DEPTH_LIMIT} folders, or has no size")
    path = os.path.join(supervisor.real_parent(root, parts, member.name), parts[-1])
    if member.isdir():
        os.makedirs(path, mode=0o700, exist_ok=True)
        return
    if os.path.lexists(path):
        raise supervisor.bad_archive(member.name, "comes twice")
    supervisor.unpack_file(archive, member, path)


def sync_tree(folder: Path) -> None:
    """Return when the files and names below a folder are on the disk."""
    for base, _, names in os.walk(folder):
        for name in names:
            _sync(os.path.join(base, name))
        _sync(base)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def tree_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder, 0 without one; links are not followed."""
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
    """Write a tar of a folder's plain files and folders under a name."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return member if member.isreg() or member.isdir() else None

    with tarfile.open(fileobj=target, mode="w|") as archive:
        archive.add(folder, arcname=name, filter=plain)
