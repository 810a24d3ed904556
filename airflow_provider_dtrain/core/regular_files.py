"""Reader for files that a user names: regular files only, opened without blocking."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from airflow_provider_dtrain.core.paths_below import plain_parts

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_regular(path: str | Path, *, limit_bytes: int | None = None) -> bytes:
    """Return the content of a regular file.

    :param limit_bytes: most bytes to return; None: all of them
    :raises OSError: the file cannot be read, or is a folder, pipe, socket or device; ``strerror`` says which
    """
    _check(os.stat(path).st_mode)
    # The path may be another file by now, and opening a pipe blocks until it has a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        _check(os.fstat(descriptor).st_mode)
        return file.read(-1 if limit_bytes is None else limit_bytes)


def _check(mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((message for test, message in _KINDS if test(mode)), "no file")
    raise OSError(0, f"it is {kind}; a regular file is expected")


def open_below(root: str | Path, relative: str) -> int:
    """Return a descriptor of a regular file below a folder. No part of the path may be a link.

    :param relative: names between slashes, without ``.`` and ``..``
    :raises OSError: the path leads elsewhere, or to something else than a regular file
    """
    try:
        parts = plain_parts(relative)
    except ValueError as error:
        raise OSError(0, str(error)) from None
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = below
        found = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        _check(os.fstat(found).st_mode)
    except OSError:
        os.close(found)
        raise
    return found
