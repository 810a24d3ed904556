"""A gang that is asked to give its slots back: its ranks write a checkpoint and end, or are ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_dtrain.errors import HostError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.following import GangFollower

#: Between two tries to tell a host that did not answer.
TELL_AGAIN_S = 5.0


class GiveWay:
    """Asks the ranks to stop when a more urgent gang or a person wants their slots.

    :param timeout_s: ``preemption_timeout``: how long they may take before they are stopped hard
    """

    def __init__(self, gang: GangFollower, timeout_s: float) -> None:
        self.gang, self.rt, self.timeout_s = gang, gang.rt, timeout_s
        #: Why, in words; None = nobody has asked.
        self.words: str | None = None
        #: True: a person wants a pause.
        self.paused = False
        #: True: no rank uses the library, so they got SIGTERM.
        self.by_signal = False
        #: time.monotonic() when it was asked, and when every rank was gone.
        self.asked_at: float | None = None
        self.done_at: float | None = None
        self._told: set[str] = set()
        self._telling: asyncio.Task[None] | None = None
        self._tell_at = 0.0

    @property
    def took_s(self) -> float | None:
        """Seconds from the wish to the end of the last rank; None when nobody asked."""
        if self.asked_at is None or self.done_at is None:
            return None
        return self.done_at - self.asked_at

    @property
    def is_overdue(self) -> bool:
        """True when the ranks have had ``preemption_timeout``."""
        return self.asked_at is not None and time.monotonic() - self.asked_at > self.timeout_s

    async def look(self, hosts: Sequence[str]) -> None:
        """Ask the ranks once somebody wants it, and hosts that did not answer again.

        :param hosts: those whose part still runs
        """
        if self.words is None and (words := self._wish()) is not None:
            await self._begin(words)
        if self.words is None or (self._telling is not None and not self._telling.done()):
            return
        left = [host for host in hosts if host not in self._told]
        if left and time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + TELL_AGAIN_S
            self._telling = asyncio.ensure_future(self._tell(left))

    def close(self) -> None:
        """Stop telling; the gang has ended."""
        self.done_at = time.monotonic()
        if self._telling is not None:
            self._telling.cancel()

    def gave_way(self) -> bool:
        """Return whether the gang ended because it was asked to, and has something left to do."""
        end = self.gang.end
        if self.words is None or end.lost or end.over is not None:
            return False
        return end.left_early or end.is_unfinished

    def _wish(self) -> str | None:
        """Return why the gang has to go, None when it may stay."""
        wishes, view = self.rt.wishes, self.gang.view
        if wishes.stop_by is not None:
            return f"stopped by {wishes.stop_by}"
        if wishes.pause_by is not None:
            self.paused = True
            return f"paused by {wishes.pause_by}"
        if wishes.preempted_for is not None:
            return f"preempted for {wishes.preempted_for}"
        # A follower before this one has asked already, and ranks may have written their checkpoint.
        return (view.reason or "asked to stop") if view.state == "stopping" else None

    async def _begin(self, words: str) -> None:
        # In the store first: whoever takes over must not take the end for the end of training.
        await self.rt.db(self.rt.store.set_stopping, self.rt.attempt_id, self.rt.watch, words)
        self.words, self.asked_at, self.gang.end.asked = words, time.monotonic(), True
        self.rt.log.warning(
            "The gang has to go: %s. Its ranks have %.0f s to write a checkpoint and end.", words, self.timeout_s
        )

    async def _tell(self, hosts: Sequence[str]) -> None:
        # Nothing is lost of a program that has not come to the library yet, or never does.
        self.by_signal = self.by_signal or not self.gang.end.joined
        answers = await asyncio.gather(*(self._tell_host(host) for host in hosts), return_exceptions=True)
        for host, found in zip(hosts, answers, strict=True):
            if isinstance(found, HostError):
                self.rt.log.warning("Host '%s' could not be told to stop, trying again: %s", host, found)
            elif isinstance(found, BaseException):
                raise found
            else:
                self._told.add(host)

    async def _tell_host(self, host: str) -> None:
        await self.rt.call(host, "request_stop", run=self.gang.run_name)
        if self.by_signal:
            await self.rt.call(host, "stop", run=self.gang.run_name, grace_s=min(self.timeout_s, 86400.0))
