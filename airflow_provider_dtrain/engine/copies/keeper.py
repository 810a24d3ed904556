"""Rounds of copying while an attempt is followed."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod


class Keeper(ABC):
    """Keeps files of this machine up to date with those of an attempt, round by round.

    :param period_s: seconds between two rounds, None = a round only after :meth:`wake`
    """

    def __init__(self, period_s: float | None) -> None:
        self._period_s = period_s
        self._wake = asyncio.Event()
        self._closing = False

    def wake(self) -> None:
        """Request a round."""
        self._wake.set()

    def close(self) -> None:
        """Let :meth:`run` end after a last round."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Work until :meth:`close`, and return after the last round."""
        is_last = False
        while not is_last:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._wake.wait()
            self._wake.clear()
            # Read before the round: what arrives during it needs another round.
            is_last = self._closing
            await self.round(is_last=is_last)

    @abstractmethod
    async def round(self, *, is_last: bool) -> None:
        """Copy what is new. A failure is logged and retried in the next round."""
