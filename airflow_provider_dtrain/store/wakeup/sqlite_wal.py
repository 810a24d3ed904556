"""Cheap detection of writes to a SQLite store, by the size and time of its log file."""

from __future__ import annotations

import contextlib
import os

from sqlalchemy.engine.url import URL


class Written:
    """Last seen size and time of a SQLite store's log. For any other database it reports no change.

    SQLite writes a commit to the log before readers see it. A query in between returns the former state, so a change is
    reported twice. Two commits within one tick of the file system's clock look like one. A missed commit costs time and
    nothing else.

    :param url: of the store
    """

    def __init__(self, url: URL) -> None:
        # Commits go to the log. The database file is written only at a checkpoint of the log.
        self._log = f"{url.database}-wal" if url.get_backend_name() == "sqlite" else None
        self._seen = self._sign()
        self._was_changed = False

    def has_changed(self) -> bool:
        """Return whether any process, including this one, has written since the last call, or just before it."""
        before = self._seen
        self._seen = self._sign()
        was_changed = self._was_changed
        self._was_changed = before != self._seen
        return self._was_changed or was_changed

    def _sign(self) -> tuple[int, int] | None:
        if self._log is not None:
            with contextlib.suppress(OSError):
                found = os.stat(self._log)
                return found.st_mtime_ns, found.st_size
        return None
