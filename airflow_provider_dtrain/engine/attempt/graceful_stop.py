"""Graceful stop of a gang: its ranks write a checkpoint and end, or are ended after a time-out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.states import AttemptState
from airflow_provider_dtrain.core.lifecycle.timing import STOP_AGAIN_S
from airflow_provider_dtrain.core.scheduling.evacuation import Drain, ask_at, time_text
from airflow_provider_dtrain.errors import HostError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.attempt.gang import Gang
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.queue import Evacuation


class GiveWay:
    """Graceful stop of the ranks, requested by a more urgent gang or by a user.

    :param timeout_s: ``preemption_timeout``: seconds that the ranks may take before they are stopped by force
    """

    def __init__(self, rt: Runtime, gang: Gang, timeout_s: float) -> None:
        self.rt = rt
        self.gang = gang
        self.timeout_s = timeout_s
        #: Reason as text; None = no stop was requested.
        self.reason: str | None = None
        #: True: a user requested a pause.
        self.paused = False
        #: The host that the gang must leave; None = another reason, or none.
        self.evacuated_from: str | None = None
        #: True: no rank uses the library, so the ranks got SIGTERM.
        self.by_signal = False
        #: time.monotonic() when the stop was requested, and when every rank was gone.
        self.asked_at: float | None = None
        self.done_at: float | None = None
        self._notified: set[str] = set()
        self._notification: asyncio.Task[None] | None = None
        self._notify_at = 0.0
        #: Deadlines of hosts that are in the task log.
        self._announced: Evacuation | None = None

    @property
    def took_s(self) -> float | None:
        """Seconds from the request to the end of the last rank, or None without a request."""
        if self.asked_at is None or self.done_at is None:
            return None
        return self.done_at - self.asked_at

    @property
    def is_overdue(self) -> bool:
        """True when ``preemption_timeout`` has passed since the request."""
        return self.asked_at is not None and time.monotonic() - self.asked_at > self.timeout_s

    async def poll(self, hosts: Sequence[str]) -> None:
        """Ask the ranks to stop once that is requested, and ask hosts that did not answer again.

        :param hosts: hosts whose part still runs
        """
        if self.reason is None and (message := self._cause()) is not None:
            await self._begin(message)
        if self.reason is None or (self._notification is not None and not self._notification.done()):
            return
        left = [host for host in hosts if host not in self._notified]
        if left and time.monotonic() >= self._notify_at:
            self._notify_at = time.monotonic() + STOP_AGAIN_S
            self._notification = asyncio.ensure_future(self._notify(left))

    def close(self) -> None:
        """Stop sending requests, because the gang has ended."""
        self.done_at = time.monotonic()
        if self._notification is not None:
            self._notification.cancel()

    def gave_way(self) -> bool:
        """Return whether the gang ended because it was asked to, and has training left to do."""
        end = self.gang.end
        if self.reason is None and end.left_early:
            # While no follower was there, the node itself asked them to stop before its job ended.
            self.reason = "the host asked the ranks to stop"
        if self.reason is None or end.lost or end.over is not None:
            return False
        return end.left_early or not end.has_finished(self.gang.view)

    def _cause(self) -> str | None:
        """Return why the gang must release its slots, or None when it may keep them."""
        requests = self.rt.control_requests
        view = self.gang.view
        if requests.stop_by is not None:
            return f"stopped by {requests.stop_by}"
        if requests.pause_by is not None:
            self.paused = True
            return f"paused by {requests.pause_by}"
        if requests.preempted_for is not None:
            return f"preempted for {requests.preempted_for}"
        if requests.asked_back is not None:
            return requests.asked_back
        if (drain := self._due_drain()) is not None:
            self.evacuated_from = drain.host
            return drain.cause
        # An earlier follower has sent the request already, and ranks may have written their checkpoint.
        return (view.reason or "asked to stop") if view.state == AttemptState.STOPPING else None

    def _due_drain(self) -> Drain | None:
        """Return the host that the gang must leave now, None when it may stay."""
        evacuation = self.rt.control_requests.evacuation
        if not evacuation.drains:
            return None
        now = self.rt.store.db.now()
        if evacuation != self._announced:
            self._announced = evacuation
            for drain in evacuation.drains:
                self._announce(drain, ask_at(drain, evacuation.gang), now)
        return evacuation.due(now)

    def _announce(self, drain: Drain, at: datetime | None, now: datetime) -> None:
        """Log a deadline that is not due, once."""
        if at is None:
            self.rt.log.warning(
                "Host '%s' is to be empty by %s. The gang cannot resume from a checkpoint, so it stays until it ends.",
                drain.host,
                time_text(drain.by),
            )
        elif at > now:
            self.rt.log.info(
                "Host '%s' is to be empty by %s. If the gang has not ended by %s, it is asked to save and resumes "
                "elsewhere.",
                drain.host,
                time_text(drain.by),
                time_text(at),
            )

    async def _begin(self, message: str) -> None:
        # Write to the store first: a process that takes over must not mistake the end for the end of training.
        await self.rt.db(
            self.rt.store.attempts.set_stopping,
            self.rt.attempt_id,
            self.rt.watch,
            message,
            evacuated_from=self.evacuated_from,
        )
        self.reason = message
        self.asked_at = time.monotonic()
        self.gang.end.asked = True
        self.rt.log.warning(
            "The gang must release its slots: %s. Its ranks have %.0f s to write a checkpoint and end.",
            message,
            self.timeout_s,
        )

    async def _notify(self, hosts: Sequence[str]) -> None:
        # A program that has not joined the library yet, or never does, loses nothing by a signal.
        self.by_signal = self.by_signal or not self.gang.end.joined
        answers = await asyncio.gather(*(self._notify_host(host) for host in hosts), return_exceptions=True)
        for host, found in zip(hosts, answers, strict=True):
            if isinstance(found, HostError):
                self.rt.log.warning("Host '%s' could not be asked to stop, retrying: %s", host, found)
            elif isinstance(found, BaseException):
                raise found
            else:
                self._notified.add(host)

    async def _notify_host(self, host: str) -> None:
        how = {"by_signal": True, "grace_s": min(self.timeout_s, 86400.0)} if self.by_signal else {}
        await self.rt.call(host, "request_stop", run=self.gang.run_name, **how)
