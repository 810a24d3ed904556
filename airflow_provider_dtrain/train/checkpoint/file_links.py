"""Second names of files, for checkpoints of files that a program keeps in a folder of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link(source: Path, target: Path) -> None:
    """Give a file a second name, which replaces an older file. Copy it where the disk does not allow that.

    The file must not be rewritten in place afterwards.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
