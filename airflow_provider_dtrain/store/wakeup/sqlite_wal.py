"""Cheap detection of writes to a SQLite store, by the size and time of its log file."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from sqlalchemy.engine.url import URL

#: Calls after which a change is reported for the last time.
AGAIN_MOST: Final = 16


class Written:
    """Last seen size and time of a SQLite store's log. For any other database it reports no change.

    SQLite writes a commit to the log before readers see it, and may wait for the disk in between. A query in between
    returns the former state, so a change is reported again, at growing distances. Two commits within one tick of the
    file system's clock look like one. A missed commit costs time and nothing else.

    :param url: of the store
    """

    def __init__(self, url: URL) -> None:
        # Commits go to the log. The database file is written only at a checkpoint of the log.
        self._log = f"{url.database}-wal" if url.get_backend_name() == "sqlite" else None
        self._seen = self._sign()
        #: Calls since the one that saw the last change.
        self._calls = AGAIN_MOST + 1

    def has_changed(self) -> bool:
        """Return whether any process, including this one, has written since the last call, or shortly before it."""
        before = self._seen
        self._seen = self._sign()
        self._calls = 0 if before != self._seen else self._calls + 1
        # Calls 0, 1, 2, 4, 8 and 16.
        return self._calls <= AGAIN_MOST and self._calls & (self._calls - 1) == 0

    def _sign(self) -> tuple[int, int] | None:
        if self._log is not None:
            with contextlib.suppress(OSError):
                found = os.stat(self._log)
                return found.st_mtime_ns, found.st_size
        return None
