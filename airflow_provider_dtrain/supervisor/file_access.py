"""Atomic and durable writes, and reads that no other process can block."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import stat
import threading
import zlib
from typing import Any

from .fields import parse_object, shorten
from .limits import IN_PLACE_BYTES, MAX_LINE
from .names import Json
from .refusal import Refused


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes. After a partial write on a full disk, the next write raises the error."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: str, data: bytes, *, durable: bool = True, sync_names: bool = True) -> None:
    """Replace the content of a file atomically.

    :param durable: False for content that is meaningless after a reboot, which ends every process of a run
    :param sync_names: False if the caller syncs the folder itself after several files
    """
    temporary = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        error.filename = error.filename or path
        raise
    if durable and sync_names:
        sync_folder(os.path.dirname(path))


def write_json(path: str, document: Any, *, durable: bool = True, sync_names: bool = True) -> None:
    """Replace a JSON file atomically."""
    data = json.dumps(document, separators=(",", ":")).encode()
    write_atomic(path, data, durable=durable, sync_names=sync_names)


def checksum(values: list[Any]) -> str:
    """Return the checksum of some JSON values."""
    return f"{zlib.crc32(json.dumps(values).encode()):08x}"


def overwrite(path: str, data: bytes) -> None:
    """Replace the content of a one-block file in place, padded with blanks. This needs no free space."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(fd, data.ljust(IN_PLACE_BYTES), 0)
        os.ftruncate(fd, IN_PLACE_BYTES)
    finally:
        os.close(fd)


def write_mark(path: str, document: Any) -> None:
    """Create a marker file durably. It is not renamed, because a rename costs a second flush."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_all(fd, json.dumps(document, separators=(",", ":")).encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(os.path.dirname(path))


def read_bytes(path: str, limit: int = MAX_LINE) -> bytes | None:
    """Return a regular file's first bytes, None if there is none. Never follows a link, never blocks."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, limit) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(fd)


def read_json(path: str) -> Json | None:
    """Return the object in a file, None if there is no file or no object in it."""
    content = read_bytes(path)
    return None if content is None else parse_object(content)


def read_text(path: str) -> str | None:
    """Return a small system file without the newline at its end, None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return None


def make_private(path: str) -> None:
    """Create a folder that only this account can access.

    An existing folder must belong to this account. Its access rights for other accounts are removed.

    :raises Refused: the path is a link or a file, or belongs to another user
    """
    if not os.path.lexists(path):
        with contextlib.suppress(FileExistsError):
            os.makedirs(path, mode=0o700, exist_ok=True)
        # A tombstone is as durable as the folder that it lies in.
        sync_folder(os.path.dirname(path))
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Refused(
            "state_dir",
            f"{path} must be a folder of user {user_name(os.getuid())}, found {kind_of(found)} of user "
            f"{user_name(found.st_uid)}. As root on the host: rm -rf {shlex.quote(path)}. Or set state_dir.",
        )
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)


def kind_of(found: os.stat_result) -> str:
    """Return the kind of a path as a phrase, e.g. ``a folder``."""
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a file"), (stat.S_ISLNK, "a symbolic link"))
    return next((message for test, message in kinds if test(found.st_mode)), "a special file")


def below(root: str, relative: str) -> str:
    """Return a path below a checked folder.

    :raises Refused: it leads outside, or passes through a link
    """
    parts = relative.split("/")
    if not relative or len(relative) > 4096 or "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise Refused("bad_plan", f"path: must be a plain relative path, got {shorten(relative)}", field="path")
    path = root
    for part in parts:
        path = os.path.join(path, part)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISLNK(os.lstat(path).st_mode):
                raise Refused("bad_plan", f"path: must not pass through a link, got {shorten(relative)}", field="path")
    return path


def user_name(uid: int) -> str:
    """Return the name of an account, or its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, [] if there is none."""
    try:
        return os.listdir(folder)
    except OSError:
        return []
