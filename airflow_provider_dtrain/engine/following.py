"""From running ranks to their end: logs, events and exits, committed before anything is thrown away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.events import CorruptEventError, parse_events
from airflow_provider_dtrain.core.lifecycle import RankExit
from airflow_provider_dtrain.engine.renewal import renewer
from airflow_provider_dtrain.errors import HostError, HostLostError, HostProtocolError, HostUnreachableError

if TYPE_CHECKING:
    from airflow_provider_dtrain.engine.runtime import Runtime
    from airflow_provider_dtrain.hosts.remote import Frame, HostLink
    from airflow_provider_dtrain.store.records import AttemptView

#: How often a follower looks at wishes and shows that it lives.
TICK_S = 1.0
RECONNECT_FIRST_S, RECONNECT_MOST_S = 0.5, 30.0
#: What a supervisor needs beyond the grace to confirm that everything is gone.
STOP_MARGIN_S = 15.0
LOG_COMMIT_S = 1.0
LOG_TAIL_BYTES = 64 * 1024
RANK0_LOG = "rank0.log"


@dataclass
class GangEnd:
    """What is known of a gang's processes."""

    exits: list[RankExit] = field(default_factory=list)
    #: ranks that finished a step
    stepping: set[int] = field(default_factory=set)
    #: host -> reason of its ``ended`` event
    ended: dict[str, str] = field(default_factory=dict)
    #: host -> why it was given up
    lost: dict[str, HostError] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """True once the gang cannot complete any more."""
        return (
            bool(self.lost)
            or any(leaving.exit_code != 0 for leaving in self.exits)
            or any(reason != "completed" for reason in self.ended.values())
        )

    def note(self, host: str, event: Mapping[str, Any], offset_s: float) -> None:
        """Take an event of a host.

        :param offset_s: how far the host's clock is ahead of ours
        """
        match event["kind"]:
            case "first_step":
                self.stepping.add(int(event.get("rank", -1)))
            case "exit":
                self.exits.append(self._exit(host, event, offset_s))
            case "ended":
                self.ended[host] = str(event.get("reason"))

    def _exit(self, host: str, event: Mapping[str, Any], offset_s: float) -> RankExit:
        return RankExit(
            rank=int(event["rank"]),
            host=host,
            exit_code=event.get("exit_code"),
            at=float(event["at"]),
            offset_s=offset_s,
            error=event.get("error"),
            sent_signal=bool(event.get("sent_signal")),
            log_tail=str(event.get("log_tail") or ""),
            has_stepped=int(event["rank"]) in self.stepping,
        )


class GangFollower:
    """Follows every host of one attempt and stops all of it when a part fails.

    :param on_event: called with (host, event) after the event is in the store
    """

    def __init__(self, rt: Runtime, view: AttemptView, on_event: Callable[[str, dict[str, Any]], None]) -> None:
        assert view.run is not None
        self.rt, self.view, self.run_name, self.on_event = rt, view, view.run, on_event
        self.end = GangEnd()
        self.changed = asyncio.Event()
        self.progressed_at = time.monotonic()

    async def run(self) -> GangEnd:
        """Return when every host has ended or is lost.

        :raises Killed: a person killed the trial; the ranks still run
        :raises HandedOver: another process follows from here; everything received is committed
        """
        for event in await self.rt.db(self.rt.store.events, self.rt.attempt_id, kinds=("first_step", "exit", "ended")):
            self.end.note(event.host, event.body, 0.0)
        tasks = {
            host: asyncio.ensure_future(HostFollower(self, host).run())
            for host in self.view.placement
            if host not in self.end.ended
        }
        try:
            with self.rt.lease(self.run_name):
                await self._until_ended(tasks)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return self.end

    async def _until_ended(self, tasks: Mapping[str, asyncio.Future[None]]) -> None:
        stop_by: float | None = None
        while not all(task.done() for task in tasks.values()):
            await self.rt.check()
            for task in tasks.values():
                if task.done():
                    task.result()
            renewer().progress(self.run_name)
            if self.end.failed and stop_by is None:
                stop_by = time.monotonic() + self.rt.settings.kill_grace_s + STOP_MARGIN_S
                await self.stop([host for host, task in tasks.items() if not task.done()])
            if stop_by is not None and time.monotonic() > stop_by:
                return
            await self._tick(tasks)
        for task in tasks.values():
            task.result()

    async def _tick(self, tasks: Mapping[str, asyncio.Future[None]]) -> None:
        """Wait until something happened, somebody wishes something, or a second has passed."""
        self.changed.clear()
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self.changed.wait()),
            asyncio.ensure_future(self.rt.wished(TICK_S)),
        ]
        running = [task for task in tasks.values() if not task.done()]
        try:
            await asyncio.wait([*waits, *running], timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def stop(self, hosts: list[str]) -> None:
        """Ask the hosts to end their ranks; a host that does not answer is left to the fence."""
        calls = [self.rt.call(host, "stop", run=self.run_name, grace_s=self.rt.settings.kill_grace_s) for host in hosts]
        for host, found in zip(hosts, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(found, HostError):
                self.rt.log.warning("Host '%s' did not take the stop: %s", host, found)
            elif isinstance(found, BaseException):
                raise found

    async def take(self, host: str, event: dict[str, Any], offset_s: float) -> None:
        """Act on an event that is in the store."""
        self.end.note(host, event, offset_s)
        self.on_event(host, event)
        self.changed.set()


class HostFollower:
    """The part of a gang on one host."""

    def __init__(self, gang: GangFollower, host: str) -> None:
        self.gang, self.rt, self.host, self.run_name = gang, gang.rt, host, gang.run_name
        self.boot_id = (gang.view.plan or {}).get("boots", {}).get(host)
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.sink: Callable[[Frame], None] | None = None
        self.log_offset, self.log_committed, self.log_committed_at = 0, 0, time.monotonic()
        self.log_tail = b""
        self.unreachable_since: float | None = None
        self.wait_s = RECONNECT_FIRST_S

    async def run(self) -> None:
        """Return when the host's part has ended; reconnects as often as needed."""
        while self.host not in self.gang.end.ended:
            try:
                link = await self._subscribe()
                await self._consume(link)
            except HostLostError as error:
                return self._give_up(error)
            except HostError as error:
                await self._back_off(error)
            finally:
                await asyncio.shield(self._commit_log())

    async def _subscribe(self) -> HostLink:
        link = await self.rt.link(self.host)
        if self.boot_id and link.hello.boot_id != self.boot_id:
            raise HostLostError(self.host, f"Host '{self.host}' was restarted while {self.run_name} ran on it.")
        stored = await self.rt.db(self.rt.store.offsets, self.rt.attempt_id)
        offsets = {stream: offset for (host, stream), offset in stored.items() if host == self.host}
        self.log_offset = self.log_committed = offsets.get(RANK0_LOG, 0)
        frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.frames = frames
        loop = asyncio.get_running_loop()

        def sink(frame: Frame) -> None:
            loop.call_soon_threadsafe(frames.put_nowait, frame)

        self.sink = sink
        future = link.subscribe(self.run_name, offsets, sink, logs="rank0")
        await asyncio.wait_for(asyncio.wrap_future(future), 30.0)
        if self.unreachable_since is not None:
            self.rt.log.info("Host '%s' answers again", self.host)
        self.unreachable_since, self.wait_s = None, RECONNECT_FIRST_S
        return link

    async def _consume(self, link: HostLink) -> None:
        try:
            while self.host not in self.gang.end.ended:
                try:
                    frame = await asyncio.wait_for(self.frames.get(), LOG_COMMIT_S)
                except TimeoutError:
                    await self._commit_log()
                    continue
                if frame.t == "lost":
                    raise HostUnreachableError(self.host, f"The channel to host '{self.host}' broke.")
                await self._take(link, frame)
        finally:
            if link.alive:
                link.unsubscribe(self.run_name, self.sink)

    async def _take(self, link: HostLink, frame: Frame) -> None:
        if frame.t == "gap":
            gap = (self.host, frame.stream, frame.skip_bytes, frame.offset, frame.reason)
            self.rt.log.warning("Host '%s', %s: %d bytes are missing at %d (%s)", *gap)
            self.log_offset = frame.end if frame.stream == RANK0_LOG else self.log_offset
            return
        assert frame.stream is not None
        if frame.stream == RANK0_LOG:
            self.rt.log.output(frame.data)
            self.log_tail = (self.log_tail + frame.data)[-LOG_TAIL_BYTES:]
            self.log_offset = frame.end
            if time.monotonic() - self.log_committed_at > LOG_COMMIT_S:
                await self._commit_log()
        else:
            await self._commit_events(link, frame)
        link.ack(self.run_name, frame.stream, frame.end)

    async def _commit_events(self, link: HostLink, frame: Frame) -> None:
        stream = str(frame.stream)
        try:
            events = parse_events(frame.data)
        except CorruptEventError as error:
            where = f"Host '{self.host}', {stream} at {frame.offset}"
            raise HostProtocolError(self.host, f"{where}: {error}") from None
        place = (self.rt.attempt_id, self.rt.watch, self.host, stream, frame.offset, frame.end)
        await asyncio.shield(self.rt.db(self.rt.store.commit_events, *place, events))
        for event in events:
            await self.gang.take(self.host, event, link.clock_offset_s)

    async def _commit_log(self) -> None:
        if self.log_offset == self.log_committed:
            return
        offset, tail = self.log_offset, self.log_tail
        await self.rt.db(self.rt.store.commit_log, self.rt.attempt_id, self.rt.watch, self.host, 0, offset, tail)
        self.log_committed, self.log_committed_at = offset, time.monotonic()

    async def _back_off(self, error: HostError) -> None:
        """Wait before the next connection; give the host up when its run must have ended itself."""
        now = time.monotonic()
        if self.unreachable_since is None:
            self.unreachable_since = now
            self.rt.log.warning("%s The ranks go on there; trying again.", error)
        limit_s = (self.rt.settings.orphan_timeout_s + self.rt.settings.kill_grace_s) * 1.05
        if self.rt.settings.orphan_timeout_s and now - self.unreachable_since > limit_s:
            message = f"Host '{self.host}' did not answer for {limit_s:.0f} s: {error}"
            return self._give_up(HostLostError(self.host, message))
        if self.gang.end.failed and now - self.unreachable_since > STOP_MARGIN_S:
            return self._give_up(error)
        await asyncio.sleep(self.wait_s * random.uniform(0.8, 1.2))  # noqa: S311
        self.wait_s = min(self.wait_s * 2, RECONNECT_MOST_S)

    def _give_up(self, error: HostError) -> None:
        self.gang.end.lost[self.host] = error
        self.gang.end.ended[self.host] = "lost"
        self.gang.changed.set()
