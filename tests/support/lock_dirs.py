"""Folders for slot locks, one per test: tests that run in parallel must not share the machine's own folder."""

from __future__ import annotations

import os
from pathlib import Path


def new_lock_dir(folder: Path) -> str:
    """Return the value of ``lock_dir`` for one host, ``none`` unless root: only root can create such a folder."""
    if os.geteuid() != 0:
        return "none"
    path = folder / "lock"
    path.mkdir(exist_ok=True)
    path.chmod(0o1777)
    return str(path)
