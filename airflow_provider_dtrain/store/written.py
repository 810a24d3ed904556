"""Whether anybody has written to a SQLite store, for the price of a look at its folder."""

from __future__ import annotations

import contextlib
import os

from sqlalchemy.engine.url import URL


class Written:
    """Remembers what the files of a SQLite store looked like; any other database never looks written.

    A commit that is not seen, as two can fall into one tick of the file system's clock, costs time and nothing else.

    :param url: of the store
    """

    def __init__(self, url: URL) -> None:
        # Commits go to the log; the file itself is written when the log is emptied into it.
        self._log = f"{url.database}-wal" if url.get_backend_name() == "sqlite" else None
        self._seen = self._sign()

    def has_changed(self) -> bool:
        """Return whether somebody, also this process, has written since the last call."""
        before, self._seen = self._seen, self._sign()
        return before != self._seen

    def _sign(self) -> tuple[int, int] | None:
        if self._log is not None:
            with contextlib.suppress(OSError):
                found = os.stat(self._log)
                return found.st_mtime_ns, found.st_size
        return None
