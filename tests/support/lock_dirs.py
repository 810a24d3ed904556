"""Folders for the locks that all accounts of a machine share, so that tests that run at once are machines apart."""

from __future__ import annotations

import os
from pathlib import Path


def new_lock_dir(folder: Path) -> str:
    """Return the value of ``lock_dir`` for one host; only root can make such a folder."""
    if os.geteuid() != 0:
        return "none"
    path = folder / "lock"
    path.mkdir(exist_ok=True)
    path.chmod(0o1777)
    return str(path)
