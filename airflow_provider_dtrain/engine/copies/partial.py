"""Folders of copies that are not complete yet. A lock in each shows that the copying process lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Names in the folder of a partial copy: the file that is locked during the copy, and the folder for the files.
_LOCK, _FILES = "lock", "files"


def make_private(folder: Path) -> None:
    """Create a folder, and missing ones above it, which other accounts of the machine cannot enter. Blocks."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def partial_copy(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield an empty folder below ``parent`` for the files of a copy, which may be moved out of it. Blocks.

    :param prefix: first part of the folder's name
    """
    while True:
        with tempfile.TemporaryDirectory(dir=parent, prefix=prefix, ignore_cleanup_errors=True) as temporary:
            descriptor = _locked(Path(temporary))
            if descriptor is None:
                continue
            try:
                files = Path(temporary) / _FILES
                files.mkdir(mode=0o700)
                yield files
            finally:
                os.close(descriptor)
            return


def sweep(parent: Path, prefix: str) -> None:
    """Remove the partial copies of processes that were killed while they copied. Blocks."""
    for path in parent.glob(f"{prefix}*"):
        # A copy that is being written is locked, and one that has just ended is gone.
        with contextlib.suppress(OSError):
            _remove_unlocked(path)


def _remove_unlocked(folder: Path) -> None:
    """Remove a partial copy.

    :raises BlockingIOError: a live process writes it
    """
    descriptor = _open(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """Return the descriptor that holds a new folder's lock, or None when a sweep has removed the folder."""
    try:
        descriptor = _open(folder)
    except FileNotFoundError:
        return None
    # On a file system without locks, a sweep removes nothing.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    if os.fstat(descriptor).st_nlink > 0:
        return descriptor
    os.close(descriptor)
    return None


def _open(folder: Path) -> int:
    # Network file systems lock only a descriptor that is open for writing, so a folder itself cannot be locked there.
    return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
