"""Rendered answers and parts of answers that a process of the API server keeps between requests."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from cachetools import LRUCache

#: Bytes that a process keeps, the largest value that it keeps, and what each costs besides its bytes, its key included.
KEPT_BYTES, LARGEST_BYTES, EACH_BYTES = 48 << 20, 8 << 20, 500


class Kept:
    """Bodies and bytes, by keys that stand for everything that they depend on.

    The tag of an answer includes the rights of its user, and the key of a part that a user may see in one form only
    includes the form. So what is found is neither old nor of another user's rights.

    :param kept_bytes: limit; values that were not requested for longest are dropped
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._lock = threading.Lock()
        self._values: LRUCache[Hashable, Any] = LRUCache(kept_bytes, lambda value: len(value) + EACH_BYTES)

    def known(self, keys: Iterable[Hashable]) -> dict[Hashable, Any]:
        """Return the values that are kept, by key."""
        with self._lock:
            return {key: self._values[key] for key in keys if key in self._values}

    def keep(self, values: Mapping[Hashable, Any]) -> None:
        """Keep values, except large ones."""
        with self._lock:
            for key, value in values.items():
                if len(value) <= LARGEST_BYTES:
                    self._values[key] = value
