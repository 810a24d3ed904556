"""From a question at a rung to the ranks that asked: what the store decided is told until rank 0's host has it.

The question is an event, so it is in the store exactly once, and its decision with it. The answer may be told any
number of times: the host keeps the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_dtrain.errors import HostError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.asha import Decision
    from airflow_provider_dtrain.engine.following import GangFollower
    from airflow_provider_dtrain.engine.runtime import Runtime
    from airflow_provider_dtrain.store.records import AttemptView
    from airflow_provider_dtrain.store.search_records import RungEntry

#: Between two tries to tell a host that did not answer.
TELL_AGAIN_S = 2.0
TELL_TIMEOUT_S = 10.0


def final(entries: Sequence[RungEntry]) -> Decision | None:
    """Return how the searcher ended a trial: ``stop`` or ``complete``; None while it goes on.

    :param entries: what the trial was told
    """
    return next((entry.decision for entry in entries if entry.decision in ("stop", "complete")), None)


async def decided(rt: Runtime, view: AttemptView) -> Decision | None:
    """Return how the searcher has ended an attempt's trial; None while it goes on, or without a search."""
    if view.search_id is None:
        return None
    return final(await rt.db(rt.store.decisions, view.trial_id))


class Deciding:
    """Tells the ranks of a gang what the searcher decides.

    :param timeout_s: how long they may take to end once they are told to
    """

    def __init__(self, gang: GangFollower, timeout_s: float) -> None:
        self.gang, self.rt, self.timeout_s = gang, gang.rt, timeout_s
        master = (gang.view.plan or {}).get("master") or {}
        #: Host of rank 0; None without a search.
        self.host: str | None = master.get("host") if gang.view.search_id is not None else None
        #: time.monotonic() when rank 0's host had been told that the trial ends.
        self.ended_at: float | None = None
        self._acked: set[int] = set()
        self._said: set[int] = set()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Tell what is known already, and from now on whatever is asked."""
        if self.host is not None:
            self._news.set()
            self._task = asyncio.ensure_future(self._run())

    def asked(self) -> None:
        """Note that a question is in the store."""
        self._news.set()

    def linked(self, host: str) -> None:
        """Note that there is a new channel to a host: what was told on the old one is told again."""
        if host == self.host:
            self._acked.clear()
            self._news.set()

    def check(self) -> None:
        """Raise what has ended the telling.

        :raises DtrainError: the store is away
        """
        if self._task is not None and self._task.done():
            self._task.result()

    @property
    def is_overdue(self) -> bool:
        """True when the ranks were told to end and have had the time for it."""
        return self.ended_at is not None and time.monotonic() - self.ended_at > self.timeout_s

    def close(self) -> None:
        """Tell no more; the gang has ended or somebody else follows it."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while not await self._tell():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TELL_AGAIN_S):
                        await self._news.wait()
                self._news.clear()

    async def _tell(self) -> bool:
        """Tell the host what it has not confirmed; return whether nothing is left to tell."""
        assert self.host is not None
        view = self.gang.view
        entries = await self.rt.db(self.rt.store.decisions, view.trial_id)
        self._say(entries)
        told = {entry.rung: entry.decision for entry in entries}
        if not told.keys() - self._acked:
            return True
        decisions = {str(rung): decision for rung, decision in told.items()}
        try:
            await self.rt.call(
                self.host, "decide", timeout_s=TELL_TIMEOUT_S, run=view.run, token=view.token, decisions=decisions
            )
        except HostError as error:
            self.rt.log.debug("Host '%s' was not told the searcher's decision, trying again: %s", self.host, error)
            return False
        self._acked |= told.keys()
        if self.ended_at is None and final(entries) is not None:
            self.ended_at = time.monotonic()
        return True

    def _say(self, entries: Sequence[RungEntry]) -> None:
        for entry in entries:
            if entry.rung in self._said:
                continue
            self._said.add(entry.rung)
            metric = "no finite metric" if entry.metric is None else f"metric {entry.metric:.6g}"
            words = (entry.rung, entry.units, metric, entry.decision)
            self.rt.log.info("Rung %d at %d units, %s: the searcher says %s", *words)
