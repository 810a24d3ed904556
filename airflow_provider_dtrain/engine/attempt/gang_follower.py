"""Follower of a running gang: one task per host, and the end of all hosts when a part fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.states import AttemptState
from airflow_provider_dtrain.core.lifecycle.timing import CHECK_WATCH_S, STOP_MARGIN_S
from airflow_provider_dtrain.engine.attempt.decision_delivery import Deciding
from airflow_provider_dtrain.engine.attempt.event_intake import SUPERVISOR, AttemptQuota
from airflow_provider_dtrain.engine.attempt.gang import Gang, GangEnd
from airflow_provider_dtrain.engine.attempt.graceful_stop import GiveWay
from airflow_provider_dtrain.engine.attempt.hang_stacks import with_stacks
from airflow_provider_dtrain.engine.attempt.max_runtime import max_runtime_over
from airflow_provider_dtrain.engine.attempt.stream import HostFollower, with_rank
from airflow_provider_dtrain.engine.attempt.watchdog import GangWatchdog
from airflow_provider_dtrain.engine.session.lease_renewer import renewer
from airflow_provider_dtrain.errors import DtrainError, HostError, RankHangsError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.store.records.trials import AttemptView

#: Seconds between two ticks, in which a follower checks for control requests and shows that it is alive.
TICK_S = 1.0
#: Kinds of events that tell the state of a gang: those of its ranks, and those of its supervisors.
RANK_KINDS, END_KINDS = ("init", "first_step", "stopped"), ("exit", "ended")


class GangFollower:
    """Follower of every host of one attempt, which stops all hosts when a part fails.

    :param on_event: called with (host, event) after the event is in the store
    :param preemption_timeout_s: seconds that ranks may take to release their slots
    :param hang_timeout_s: seconds that a rank may block the other ranks before the gang is ended
    :param max_runtime: seconds of ``max_runtime``, and time.monotonic() when it is over; None = no limit
    :param lost: hosts that are known to no longer have anything of the run
    """

    def __init__(
        self,
        rt: Runtime,
        view: AttemptView,
        on_event: Callable[[str, JsonObject], None],
        *,
        preemption_timeout_s: float = 3600.0,
        hang_timeout_s: float = 1800.0,
        max_runtime: tuple[float, float] | None = None,
        lost: Mapping[str, HostError] | None = None,
    ) -> None:
        assert view.run is not None
        self.rt = rt
        self.view = view
        self.run_name = view.run
        self.on_event = on_event
        self.end = GangEnd(lost=dict(lost or {}), ended=dict.fromkeys(lost or {}, "lost"))
        self.gang = Gang(view=view, run_name=view.run, end=self.end)
        self.give_way = GiveWay(rt, self.gang, preemption_timeout_s)
        self.deciding = Deciding(rt, view, preemption_timeout_s)
        self.watchdog = GangWatchdog(view.placement, hang_timeout_s, rt.log)
        self.max_runtime = max_runtime
        self.quota = AttemptQuota(rt)
        self.checked_at = time.monotonic()

    async def run(self) -> GangEnd:
        """Return when every host has ended or is lost.

        :raises Killed: the trial was killed; the ranks still run
        :raises HandedOver: another process follows from here; everything received is committed
        """
        for host, stream, kind in await self.rt.db(self.rt.store.events.kinds_of, self.rt.attempt_id, RANK_KINDS):
            self.end.note(host, with_rank(stream, {"kind": kind}), 0.0)
        for event in await self.rt.db(self.rt.store.events.of_attempt, self.rt.attempt_id, kinds=END_KINDS):
            if event.stream != SUPERVISOR:
                continue
            offset_s = float(event.body.get("clock_offset_s") or 0.0)
            self.end.note(event.host, with_rank(event.stream, event.body), offset_s)
        if self.view.state == AttemptState.STOPPING:
            await self.give_way.poll([])
        tasks = {
            host: asyncio.ensure_future(self._follower(host).run())
            for host in self.view.placement
            if host not in self.end.ended
        }
        self.deciding.start()
        self.rt.on_kill = self._stop_at_once
        try:
            with self.rt.lease(self.run_name):
                await self._until_ended(tasks)
        finally:
            self.rt.on_kill = None
            self.give_way.close()
            self.deciding.close()
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return self.end

    def _follower(self, host: str) -> HostFollower:
        return HostFollower(
            self.rt,
            self.gang,
            host,
            quota=self.quota,
            on_link=self.deciding.linked,
            on_progress=self.watchdog.take,
            on_event=self._take,
        )

    async def _until_ended(self, tasks: Mapping[str, asyncio.Future[None]]) -> None:
        stop_by: float | None = None
        while not all(task.done() for task in tasks.values()):
            await self.rt.check(runs=True)
            for task in tasks.values():
                if task.done():
                    task.result()
            renewer().progress(self.run_name)
            running = [host for host, task in tasks.items() if not task.done()]
            await self._check(running)
            if stop_by is None and self._must_stop():
                stop_by = time.monotonic() + self.rt.settings.kill_grace_s + STOP_MARGIN_S
                await self.stop(running)
            if stop_by is not None and time.monotonic() > stop_by:
                return
            await self._tick(tasks)
        for task in tasks.values():
            task.result()

    async def _check(self, running: Sequence[str]) -> None:
        """Check the conditions that may end a healthy gang: requests for its slots, hangs, and limits.

        :param running: hosts whose part has not ended
        """
        if time.monotonic() - self.checked_at > CHECK_WATCH_S:
            self.checked_at = time.monotonic()
            await self.rt.prove_watch()
        await self.give_way.poll(running)
        self.deciding.check()
        if self.end.over is None and (error := self.watchdog.check(self.end.ended)) is not None:
            if isinstance(error, RankHangsError):
                error = await with_stacks(self.rt, self.run_name, running, error)
            self.end.over = error
        if self.max_runtime is not None and self.end.over is None and time.monotonic() > self.max_runtime[1]:
            self.end.over = max_runtime_over(self.max_runtime[0])

    def _must_stop(self) -> bool:
        if self.give_way.is_overdue:
            self.rt.log.warning(
                "preemption_timeout has passed: the ranks are stopped. Their latest checkpoint is kept."
            )
            return True
        if self.deciding.is_overdue:
            self.rt.log.warning(
                "The searcher has ended the trial, and its ranks still run after preemption_timeout: they are stopped. "
                "Their latest checkpoint is kept. Leave the loop when report_validation returns 'stop'."
            )
            return True
        # After the follower's SIGTERM, the ranks end with a signal one by one. That is no failure.
        return self.end.failed and (not self.give_way.by_signal or self.end.over is not None)

    async def _tick(self, tasks: Mapping[str, asyncio.Future[None]]) -> None:
        """Wait for an event, a kill or a handover, but for a second at most."""
        self.gang.changed.clear()
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self.gang.changed.wait()),
            asyncio.ensure_future(self.rt.interrupted(TICK_S)),
        ]
        running = [task for task in tasks.values() if not task.done()]
        try:
            await asyncio.wait([*waits, *running], timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def stop(self, hosts: list[str]) -> None:
        """Ask the hosts to end their ranks.

        A host that does not answer is left to the fence.

        :raises StaleWatchError: another process follows the gang
        """
        await self.rt.prove_watch()
        calls = [self.rt.call(host, "stop", run=self.run_name, grace_s=self.rt.settings.kill_grace_s) for host in hosts]
        for host, found in zip(hosts, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(found, HostError):
                self.rt.log.warning("Host '%s' did not accept the stop command: %s", host, found)
            elif isinstance(found, BaseException):
                raise found

    def end_because(self, error: DtrainError) -> None:
        """End the gang, whatever its ranks report."""
        self.end.over = self.end.over or error
        self.gang.changed.set()

    def _stop_at_once(self) -> None:
        """Send the stop command on open channels, without waiting for answers: the fence follows."""
        for host, link in self.gang.links.items():
            if host not in self.end.ended and link.alive:
                link.call("stop", run=self.run_name, grace_s=self.rt.settings.kill_grace_s)

    def _take(self, host: str, event: JsonObject, offset_s: float) -> None:
        """Handle an event that is in the store."""
        self.end.note(host, event, offset_s)
        if event["kind"] == "rung":
            self.deciding.asked()
        self.on_event(host, event)
        self.gang.changed.set()
