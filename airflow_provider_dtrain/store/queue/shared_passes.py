"""Sharing of scheduling passes in a process: one thread runs a pass, which also serves threads that join it."""

from __future__ import annotations

import os
import threading
from types import TracebackType

#: Longest wait for the pass of another thread. After it, the caller checks the pool itself.
PASS_WAIT_S = 30.0

_lock = threading.Lock()
_open: dict[tuple[str, str], Turn] = {}


class Turn:
    """One pass over a pool, and the callers that it serves.

    A caller may join until the pass commits. Its own change was committed before, under the lock of the pool. So a
    pass that still holds this lock has seen the change, and a pass that still waits for the lock will see it.
    """

    def __init__(self, key: tuple[str, str]) -> None:
        self._key = key
        self._over = threading.Event()
        #: True when another caller waits for this pass.
        self.has_joined = False
        #: Number of requests that still wait after the pass; None until it has succeeded.
        self.waiting: int | None = None

    def close(self) -> None:
        """Accept no further callers. This must come before the pass commits. Repeatable."""
        with _lock:
            if _open.get(self._key) is self:
                del _open[self._key]

    def wait(self) -> int | None:
        """Return the number of requests that still wait after the pass, None when it failed."""
        return self.waiting if self._over.wait(PASS_WAIT_S) else None

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._over.set()


def join_turn(store: str, pool: str) -> tuple[Turn, bool]:
    """Return the turn that serves the caller, and whether the caller must run its pass.

    :param store: URL of the store
    """
    key = (store, pool)
    with _lock:
        if (found := _open.get(key)) is not None:
            found.has_joined = True
            return found, False
        turn = _open[key] = Turn(key)
    return turn, True


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
