"""Folders of this machine that mirror files of hosts.

Files arrive in a folder of their own. They are compared with what their ranks reported, and get their name once they
are complete and on the disk. A lock in the folder of a partial copy shows that the copying process lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import ValidationError

from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError, check_size
from airflow_provider_dtrain.errors import HostError
from airflow_provider_dtrain.hosts.channel.archive_reader import (
    ArchiveLimitError,
    ByteSource,
    sync_path,
    sync_tree,
    unpack_plain,
)

#: Prefix in the name of a copy that is not complete yet.
PARTIAL = ".copy-"
#: Names in the folder of a partial copy: the file that is locked during the copy, and the folder for the files.
_LOCK, _FILES = "lock", "files"


class DamagedCopyError(Exception):
    """Files that a host sent differ from what its ranks wrote or reported."""


#: Errors of a copy that was not made, for which the trial is not at fault.
NOT_COPIED = (HostError, OSError, ArchiveLimitError, DamagedCopyError)


def make_private(folder: Path) -> None:
    """Create a folder, and missing ones above it, which other accounts of the machine cannot enter. Blocks."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def fetched(
    mirror: Path, transfer: AbstractContextManager[ByteSource], *, limit_bytes: int, limit_files: int
) -> Iterator[Path]:
    """Yield a folder with the files that a host sends, which is removed afterwards unless it was moved. Blocks.

    :param transfer: archive that is read while it arrives
    :param limit_bytes: most bytes that its files may have together
    :raises ArchiveLimitError: it exceeds a limit
    :raises DamagedCopyError: it is damaged, leads outside its folder, or has links or devices
    """
    make_private(mirror)
    with partial_copy(mirror) as folder:
        try:
            with transfer as incoming:
                unpack_plain(incoming, folder, limit_bytes=limit_bytes, limit_files=limit_files)
        except ArchiveLimitError:
            raise
        except tarfile.TarError as error:
            raise DamagedCopyError(str(error)) from error
        yield folder


def read_bounded(path: Path, *, limit_bytes: int, depth: int, values: int) -> bytes:
    """Return the JSON document that a host sent, before anything is built of it. Blocks.

    :param depth: most levels of nesting
    :param values: most values in all lists and objects together
    :raises DamagedCopyError: it is missing, no file, or exceeds a limit
    """
    try:
        with open(path, "rb") as file:
            text = file.read(limit_bytes + 1)
        if len(text) > limit_bytes:
            raise UntrustedInputError(f"more than {limit_bytes} bytes")
        check_size(text, depth=depth, values=values)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DamagedCopyError(f"{path.name} is missing, or no file") from None
    except UntrustedInputError as error:
        raise DamagedCopyError(f"{path.name}: {error}") from error
    return text


@contextlib.contextmanager
def checked(name: str) -> Iterator[None]:
    """Turn the error of a document that has another form into one that names the document and the place in it."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DamagedCopyError(f"{name} has another form: {place!r:.100}: {first['msg']:.200}") from None


def put_in_place(folder: Path, target: Path) -> None:
    """Rename a folder of complete files, durably. Blocks.

    :raises OSError: another process has put files there
    """
    sync_tree(folder)
    os.rename(folder, target)
    sync_path(target.parent)


@contextlib.contextmanager
def partial_copy(mirror: Path) -> Iterator[Path]:
    """Yield an empty folder below ``mirror`` for the files of a copy, which may be moved out of it. Blocks."""
    while True:
        with tempfile.TemporaryDirectory(dir=mirror, prefix=PARTIAL, ignore_cleanup_errors=True) as temporary:
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


def sweep(mirror: Path) -> None:
    """Remove the partial copies of processes that were killed while they copied. Blocks."""
    for path in mirror.glob(f"{PARTIAL}*"):
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
