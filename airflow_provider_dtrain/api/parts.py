"""Rendered parts of answers, kept so that a change of one trial or gang causes the work for that part only."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping

#: Bytes of the parts that a process keeps, and what a part costs besides its JSON, its key included.
KEPT_BYTES, PART_BYTES = 16 << 20, 500


class Parts:
    """JSON of parts by keys that stand for everything that a part depends on.

    A part that a user may see in one form only has the form in its key.

    :param kept_bytes: limit; the parts that were not requested for longest are dropped
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._parts: dict[Hashable, bytes] = {}
        self._size = 0

    def known(self, keys: Iterable[Hashable]) -> dict[Hashable, bytes]:
        """Return the parts that are kept, by key."""
        found = {}
        with self._lock:
            for key in keys:
                part = self._parts.pop(key, None)
                if part is not None:
                    found[key] = self._parts[key] = part
        return found

    def keep(self, parts: Mapping[Hashable, bytes]) -> None:
        """Keep parts, and drop those that were not requested for longest."""
        with self._lock:
            for key, part in parts.items():
                self._drop(key)
                self._parts[key] = part
                self._size += len(part) + PART_BYTES
            while self._size > self.kept_bytes:
                self._drop(next(iter(self._parts)))

    def _drop(self, key: Hashable) -> None:
        part = self._parts.pop(key, None)
        self._size -= 0 if part is None else len(part) + PART_BYTES
