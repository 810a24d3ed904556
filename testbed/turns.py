"""Measures the time between two polls of an event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any


class Turns:
    """Records the longest turns of the running loop.

    Use it as a context manager, or call :meth:`begin` and leave it on.
    """

    def __init__(self) -> None:
        #: Longest turn by wall clock, and by CPU time of the loop's thread.
        self.longest_s = self.longest_cpu_s = 0.0
        self._since: tuple[float, float] | None = None

    def begin(self) -> Turns:
        """Start measuring."""
        self._selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        self._select = self._selector.select
        self._selector.select = self._look
        return self

    def _look(self, timeout: float | None = None) -> Any:
        if self._since is not None:
            wall_s, cpu_s = time.monotonic() - self._since[0], time.thread_time() - self._since[1]
            self.longest_s, self.longest_cpu_s = max(self.longest_s, wall_s), max(self.longest_cpu_s, cpu_s)
        found = self._select(timeout)
        self._since = time.monotonic(), time.thread_time()
        return found

    def __enter__(self) -> Turns:
        return self.begin()

    def __exit__(self, *exc: object) -> None:
        self._selector.select = self._select
