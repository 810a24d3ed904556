"""Whose turn it is among the threads of this process: to pass over a pool, and to write to SQLite."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Longest wait for other threads; whoever waited so long tries all the same.
WRITE_WAIT_S = 30.0

_lock = threading.Lock()
_taken: dict[tuple[str, str], Turn] = {}
_writers: dict[str, threading.Lock] = {}


class Turn:
    """The right to run the passes of a pool of one store; who comes meanwhile has nothing to add.

    It is left before the transaction commits. A change that this pass did not see cannot be committed before the
    pass is, as both lock the pool; so whoever made it finds the turn free.
    """

    def __init__(self, key: tuple[str, str]) -> None:
        self._key: tuple[str, str] | None = key
        #: Whether somebody was sent away because of this turn. If no pass came of it, look again: nobody else does.
        self.has_refused = False

    def leave(self) -> None:
        """Let the next one pass. Repeatable."""
        with _lock:
            if self._key is not None:
                _taken.pop(self._key, None)
            self._key = None


def take_turn(store: str, pool: str) -> Turn | None:
    """Return the turn, None while another thread has it."""
    key = (store, pool)
    with _lock:
        other = _taken.get(key)
        if other is not None:
            other.has_refused = True
            return None
        turn = _taken[key] = Turn(key)
    return turn


@contextmanager
def write_turn(database: str) -> Iterator[None]:
    """Let one thread of this process at a time write to a SQLite database.

    SQLite lets whoever comes second sleep for up to 100 ms at a time, however early the first is done.

    :param database: its path
    """
    with _lock:
        writer = _writers.setdefault(database, threading.Lock())
    is_mine = writer.acquire(timeout=WRITE_WAIT_S)
    try:
        yield
    finally:
        if is_mine:
            writer.release()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _taken.clear()
    _writers.clear()


os.register_at_fork(after_in_child=_after_fork)
