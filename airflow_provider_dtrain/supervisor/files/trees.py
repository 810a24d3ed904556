"""Size and removal of whole folders."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
from collections.abc import Iterator

from ..fields import shorten
from ..limits import LONG_PATH
from ..names import DELETED
from ..refusal import Refused


def remove_tree(root: str) -> None:
    """Remove a file or folder of any depth. What cannot be removed stays.

    Folders get the access rights that their removal needs.
    """
    if os.path.islink(root) or not os.path.isdir(root):
        with contextlib.suppress(OSError):
            os.unlink(root)
        return
    waiting = [root]
    emptied = set[str]()
    while waiting:
        folder = waiting.pop()
        with contextlib.suppress(OSError):
            if folder in emptied:
                os.rmdir(folder)
                continue
            emptied.add(folder)
            waiting.append(folder)
            make_removable(folder)
            waiting += remove_files(folder, root)


def remove_files(folder: str, root: str) -> list[str]:
    """Remove the files of a folder and return its folders. Those with long paths are moved to ``root``."""
    with os.scandir(folder) as entries:
        found = list(entries)
    folders = []
    for entry in found:
        with contextlib.suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif len(os.fsencode(entry.path)) <= LONG_PATH:
                folders.append(entry.path)
            else:
                make_removable(entry.path)
                moved = os.path.join(root, f"{random.getrandbits(64):016x}{DELETED}")
                os.rename(entry.path, moved)
                folders.append(moved)
    return folders


def make_removable(folder: str) -> None:
    """Give the owner of a folder all access rights, which the removal of its content needs."""
    if os.lstat(folder).st_mode & 0o700 != 0o700:
        os.chmod(folder, 0o700)


def tree_bytes(path: str) -> int:
    """Return the bytes on disk of a file, or of a folder with all files below it."""
    return sum(found.st_blocks * 512 for _, found in walk_tree(path))


def walk_tree(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and status of a file, or of a folder and everything below it. What cannot be read is left out."""
    waiting = [path]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            found = os.lstat(one)
            yield one, found
            if stat.S_ISDIR(found.st_mode):
                waiting += [os.path.join(one, name) for name in os.listdir(one)]


@contextlib.contextmanager
def opened_below(root: str, folder: str) -> Iterator[str]:
    """Yield a path of a folder below ``root`` that refers to the same folder even if it is renamed.

    Links in ``root`` itself are followed, because a configuration or this file names it. Links below it are not.

    :raises FileNotFoundError: the folder does not exist
    :raises Refused: the path leads outside, or passes through a link
    """
    parts = folder.split("/")
    if len(folder) > 4096 or "\0" in folder or any(part in ("", ".", "..") for part in parts):
        raise Refused("bad_plan", f"folder: must be a plain relative path, got {shorten(folder)}", field="folder")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                message = f"folder: part {shorten(part)} of {shorten(folder)} must be a folder, but is a link or a file"
                raise Refused("bad_plan", message, field="folder") from error
            os.close(fd)
            fd = inner
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
