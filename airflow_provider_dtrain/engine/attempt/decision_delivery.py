"""Delivery of the searcher's decisions at rungs to the ranks that asked for them.

The question is an event, so the store has it exactly once, and its decision with it. The decision is sent until rank
0's host has confirmed it. It may be sent any number of times: the host keeps the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import DECIDE_AGAIN_S, DECIDE_TIMEOUT_S
from airflow_provider_dtrain.errors import HostError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.search.asha import Decision
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.searches import RungEntry
    from airflow_provider_dtrain.store.records.trials import AttemptView


def final(entries: Sequence[RungEntry]) -> Decision | None:
    """Return the decision that ended a trial, ``stop`` or ``complete``, or None while it continues.

    :param entries: the trial's decisions
    """
    return next((entry.decision for entry in entries if entry.decision in ("stop", "complete")), None)


async def decided(rt: Runtime, view: AttemptView) -> Decision | None:
    """Return the decision that ended an attempt's trial, or None while it continues or without a search."""
    if view.search_id is None:
        return None
    return final(await rt.db(rt.store.searches.decisions, view.trial_id))


class Deciding:
    """Sender of the searcher's decisions to the ranks of an attempt.

    :param timeout_s: seconds that the ranks may take to end once they are notified
    """

    def __init__(self, rt: Runtime, view: AttemptView, timeout_s: float) -> None:
        self.rt = rt
        self.view = view
        self.timeout_s = timeout_s
        master = (view.plan or {}).get("master") or {}
        #: Host of rank 0; None without a search.
        self.host: str | None = master.get("host") if view.search_id is not None else None
        #: time.monotonic() when rank 0's host had been notified that the trial ends.
        self.ended_at: float | None = None
        self._acked: set[int] = set()
        self._logged: set[int] = set()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send the decisions that are known already, and from now on every new one."""
        if self.host is not None:
            self._news.set()
            self._task = asyncio.ensure_future(self._run())

    def asked(self) -> None:
        """Note that a question is in the store."""
        self._news.set()

    def linked(self, host: str) -> None:
        """Note a new channel to a host, on which the decisions are sent again."""
        if host == self.host:
            self._acked.clear()
            self._news.set()

    def check(self) -> None:
        """Raise the error that has ended the sending, if there is one.

        :raises DtrainError: the store is unavailable
        """
        if self._task is not None and self._task.done():
            self._task.result()

    @property
    def is_overdue(self) -> bool:
        """True when the ranks were asked to end and their time for it is over."""
        return self.ended_at is not None and time.monotonic() - self.ended_at > self.timeout_s

    def close(self) -> None:
        """Stop sending, because the gang has ended or another process follows it."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while not await self._send():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DECIDE_AGAIN_S):
                        await self._news.wait()
                self._news.clear()

    async def _send(self) -> bool:
        """Send the decisions that the host has not confirmed, and return whether it has confirmed all."""
        assert self.host is not None
        view = self.view
        entries = await self.rt.db(self.rt.store.searches.decisions, view.trial_id)
        self._log(entries)
        sent = {entry.rung: entry.decision for entry in entries}
        if not sent.keys() - self._acked:
            return True
        decisions = {str(rung): decision for rung, decision in sent.items()}
        try:
            await self.rt.call(
                self.host, "decide", timeout_s=DECIDE_TIMEOUT_S, run=view.run, token=view.token, decisions=decisions
            )
        except HostError as error:
            self.rt.log.debug("Host '%s' did not receive the searcher's decision, retrying: %s", self.host, error)
            return False
        self._acked |= sent.keys()
        if self.ended_at is None and final(entries) is not None:
            self.ended_at = time.monotonic()
        return True

    def _log(self, entries: Sequence[RungEntry]) -> None:
        for entry in entries:
            if entry.rung in self._logged:
                continue
            self._logged.add(entry.rung)
            metric = "no finite metric" if entry.metric is None else f"metric {entry.metric:.6g}"
            values = (entry.rung, entry.units, metric, entry.decision)
            self.rt.log.event("Rung %d at %d units, %s: the searcher decided %s", *values)
