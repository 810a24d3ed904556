"""Archives: received, checked, unpacked and sent."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import shutil
import stat
import tarfile
import zlib
from typing import IO

from ..fields import shorten
from ..file_access import below, sync_folder, write_all
from ..limits import MEMBER_LIMIT, UNPACKED_LIMIT
from ..refusal import Refused
from .layout import Layout


def receive_archive(layout: Layout, kind: str, digest: str, source: IO[bytes]) -> None:
    """Store an incoming archive, completely and with the right digest or not at all.

    :raises Refused: wrong digest, or the folder cannot be written
    """
    target = layout.archive(kind, digest)
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    temporary = f"{target}.{os.getpid()}.{random.getrandbits(48):012x}.tmp"
    seen = hashlib.sha256()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            while chunk := source.read(1 << 20):
                seen.update(chunk)
                write_all(fd, chunk)
            if seen.hexdigest() != digest:
                message = f"The archive must have SHA-256 {digest}, got {seen.hexdigest()}. Send it again."
                raise Refused("digest", message)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(target))


def bad_archive(name: str, message: str) -> Refused:
    """Return the refusal for a member of an archive."""
    return Refused("bad_archive", f"Archive member {shorten(name)} {message}. It was not unpacked.")


def member_parts(name: str) -> list[str]:
    """Return the parts of a member's path.

    :raises Refused: the path is absolute or leads upwards
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or "\0" in name or ".." in parts or len(name) > 4096:
        raise bad_archive(name, "has a path that leads outside")
    return parts


def check_link(name: str, target: str, depth: int) -> None:
    """Refuse a symbolic link that may lead outside.

    A target may have only leading ``..`` parts, at most as many as the depth of the link. No member is
    ever written through a link, so such a target stays inside whatever the rest of it passes through.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or "\0" in target or ups > depth or ".." in parts[ups:]:
        raise bad_archive(name, f"links to {shorten(target)}, which leads outside")


def real_parent(root: str, parts: list[str], name: str) -> str:
    """Create and return the folder for a member. No part of its path is a link."""
    path = root
    for part in parts[:-1]:
        path = os.path.join(path, part)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise bad_archive(name, "is below a path that is not a folder")
    return path


def unpack(archive: tarfile.TarFile, root: str) -> None:
    """Unpack files, folders and inner links below ``root``, readable by this account only.

    :raises Refused: a member has a path or link that leads outside, or is a device
    """
    total = 0
    for count, member in enumerate(archive):
        parts = member_parts(member.name)
        total += max(0, member.size)
        if count >= MEMBER_LIMIT or total > UNPACKED_LIMIT:
            raise bad_archive(member.name, f"exceeds {MEMBER_LIMIT} members or {UNPACKED_LIMIT} bytes")
        if parts:
            unpack_member(archive, member, root, parts)
        elif not member.isdir():
            raise bad_archive(member.name, "has no name")


def unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str, parts: list[str]) -> None:
    """Unpack one checked member."""
    path = os.path.join(real_parent(root, parts, member.name), parts[-1])
    found = os.lstat(path) if os.path.lexists(path) else None
    if member.isdir():
        if found is None:
            os.mkdir(path, 0o700)
        elif not stat.S_ISDIR(found.st_mode):
            raise bad_archive(member.name, "is a folder, but its path is already a file")
        return
    if found is not None:
        if stat.S_ISDIR(found.st_mode):
            raise bad_archive(member.name, "is a file, but its path is already a folder")
        os.unlink(path)
    if member.issym():
        check_link(member.name, member.linkname, len(parts) - 1)
        os.symlink(member.linkname, path)
    elif member.islnk():
        inner = member_parts(member.linkname)
        source = below(root, "/".join(inner)) if inner else ""
        if not source or not os.path.isfile(source):
            raise bad_archive(member.name, "is a hard link to a file that does not exist")
        os.link(source, path, follow_symlinks=False)
    elif member.isreg():
        unpack_file(archive, member, path)
    else:
        raise bad_archive(member.name, "is neither file, folder nor link")


def unpack_file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """Write a regular member. Of its metadata, only the executable bit and the time are kept."""
    source = archive.extractfile(member)
    mode = 0o700 if member.mode & 0o100 else 0o600
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        while source is not None and (chunk := source.read(1 << 20)):
            write_all(fd, chunk)
        if 0 <= member.mtime < 1 << 33:
            os.utime(fd, (member.mtime, member.mtime))
    finally:
        os.close(fd)


def unpack_archive(path: str, target: str) -> None:
    """Unpack a tar.gz into a folder atomically. An existing folder stays unchanged."""
    if os.path.isdir(target):
        return
    temporary = f"{target}.{os.getpid()}.{random.getrandbits(48):012x}.tmp"
    os.makedirs(temporary, mode=0o700)
    try:
        try:
            with tarfile.open(path, "r:gz") as archive:
                unpack(archive, temporary)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise Refused("bad_archive", f"{os.path.basename(path)} is damaged: {error}. Send it again.") from error
        os.rename(temporary, target)
    except OSError as error:
        # Another run unpacked the same content first.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def send_tree(path: str, target: IO[bytes]) -> None:
    """Write a tar of a file or folder, named by its last part, without sockets and devices."""

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member if member.isreg() or member.isdir() or member.issym() or member.islnk() else None

    with tarfile.open(fileobj=target, mode="w|") as archive:
        archive.add(path, arcname=os.path.basename(path), filter=wanted)
