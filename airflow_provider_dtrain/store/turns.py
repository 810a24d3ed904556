"""One pass per pool at a time in this process: who comes while another one passes has nothing to add."""

from __future__ import annotations

import os
import threading

_lock = threading.Lock()
_taken: set[tuple[str, str]] = set()


class Turn:
    """The right to run the passes of a pool of one store.

    It is left before the transaction commits. A change that this pass did not see cannot be committed before the
    pass is, as both lock the pool; so whoever made it finds the turn free.
    """

    def __init__(self, key: tuple[str, str]) -> None:
        self._key: tuple[str, str] | None = key

    def leave(self) -> None:
        """Let the next one pass. Repeatable."""
        with _lock:
            if self._key is not None:
                _taken.discard(self._key)
            self._key = None


def take_turn(store: str, pool: str) -> Turn | None:
    """Return the turn, None while another thread has it."""
    key = (store, pool)
    with _lock:
        if key in _taken:
            return None
        _taken.add(key)
    return Turn(key)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _taken.clear()


os.register_at_fork(after_in_child=_after_fork)
