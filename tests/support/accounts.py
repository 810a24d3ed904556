"""Folders and user ids for processes of ordinary accounts without an entry in /etc/passwd."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: An interpreter that every account may run; that of the tests may lie below root's home.
PYTHON = "/usr/bin/python3"


def need_accounts() -> None:
    """Skip the test unless it can run processes of other accounts."""
    if os.geteuid() != 0:
        pytest.skip("processes of other accounts need root")
    if not os.path.exists(PYTHON):
        pytest.skip(f"other accounts need an interpreter: {PYTHON}")


def uids() -> tuple[int, int]:
    """Return two user ids that no other process of this machine has."""
    own = 200_000 + 2 * os.getpid()
    return own, own + 1


@contextmanager
def open_folder() -> Iterator[Path]:
    """Create a folder that every account can reach, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="dtrain-accounts-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
