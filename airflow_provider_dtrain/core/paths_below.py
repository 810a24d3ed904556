"""Paths below a folder whose names come from another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from airflow_provider_dtrain.core.control_characters import is_one_line

#: Longest path, and longest name in it, in bytes: those of Linux.
PATH_MOST: Final = 4095
NAME_MOST: Final = 255


def plain_parts(relative: str) -> list[str]:
    """Return the names in a path that leads downwards.

    :param relative: names between slashes, without ``.`` and ``..``
    :raises ValueError: it is another path, too long for a file system, or has a control character
    """
    parts = relative.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError("a path must consist of plain names between slashes")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise ValueError("a path must be UTF-8") from None
    if max(sizes) > NAME_MOST or sum(sizes) + len(parts) - 1 > PATH_MOST:
        raise ValueError(f"a name has at most {NAME_MOST} bytes, and a path {PATH_MOST}")
    if not is_one_line(relative):
        raise ValueError("a path must not have control characters")
    return parts


def path_below(folder: Path, relative: str) -> Path:
    """Return a path below a folder. The folder itself may be a link, and no part below it.

    :raises ValueError: the path is none of :func:`plain_parts`, or passes through a link
    """
    path = folder
    for part in plain_parts(relative):
        path = path / part
        if path.is_symlink():
            raise ValueError(f"{path} is a link")
    return path
