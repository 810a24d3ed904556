"""What one host sends of a run: logs, events and exits, committed before anything is thrown away."""

from __future__ import annotations

import asyncio
import functools
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.events import CorruptEventError, parse_events
from airflow_provider_dtrain.errors import (
    HostError,
    HostLostError,
    HostProtocolError,
    HostRefusedError,
    HostSilentError,
    HostUnreachableError,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from airflow_provider_dtrain.engine.following import GangFollower
    from airflow_provider_dtrain.hosts.remote import Frame, HostLink

RECONNECT_FIRST_S, RECONNECT_MOST_S = 0.5, 30.0
#: What a supervisor needs beyond the grace to confirm that everything is gone.
STOP_MARGIN_S = 15.0
LOG_COMMIT_S, SUBSCRIBE_S = 1.0, 30.0
LOG_TAIL_BYTES = 64 * 1024
RANK0_LOG = "rank0.log"
_RANK_EVENTS = re.compile(r"rank(\d+)\.events")
#: How long a host that was restarted may take to send what its disk has kept of the run.
RESTARTED_READ_S = 20.0
#: A host that is away for longer is shown as unreachable, and gets no new gangs.
SHOWN_AFTER_S = 10.0


def with_rank(stream: str, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event with the rank that wrote it, where a rank did."""
    found = _RANK_EVENTS.fullmatch(stream)
    return {**event, "rank": int(found[1])} if found else dict(event)


class HostFollower:
    """The part of a gang on one host."""

    def __init__(self, gang: GangFollower, host: str) -> None:
        self.gang, self.rt, self.host, self.run_name = gang, gang.rt, host, gang.run_name
        self.boot_id = (gang.view.plan or {}).get("boots", {}).get(host)
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.sink: Callable[[Frame], None] | None = None
        self.log_offset, self.log_committed, self.log_committed_at = 0, 0, time.monotonic()
        self.log_tail = b""
        #: Bytes of rank 0's log that were shown before its host lost the file's end.
        self.log_shown = 0
        #: stream -> how often it had begun anew when we subscribed
        self.epochs: dict[str, int] = {}
        self.is_restarted = self.is_shown_away = False
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
            except HostRefusedError as error:
                if error.code == "unknown_run":
                    return self._give_up(self._lost("has no trace of"))
                await self._back_off(error)
            except HostError as error:
                await self._back_off(error)
            finally:
                await asyncio.shield(self._commit_log())

    def _lost(self, what: str) -> HostLostError:
        after = " It was restarted meanwhile." if self.is_restarted and "restarted" not in what else ""
        return HostLostError(self.host, f"Host '{self.host}' {what} run {self.run_name}.{after}")

    async def _subscribe(self) -> HostLink:
        link = await self.rt.link(self.host)
        self.is_restarted = bool(self.boot_id) and link.hello.boot_id != self.boot_id
        store, attempt_id = self.rt.store, self.rt.attempt_id
        stored = await self.rt.db(store.offsets, attempt_id)
        self.epochs = {
            stream: epoch for (host, stream), epoch in (await self.rt.db(store.epochs, attempt_id)).items()
            if host == self.host
        }  # fmt: skip
        offsets = {stream: offset for (host, stream), offset in stored.items() if host == self.host}
        self.log_offset = self.log_committed = offsets.get(RANK0_LOG, 0)
        frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.frames = frames
        loop = asyncio.get_running_loop()

        def sink(frame: Frame) -> None:
            loop.call_soon_threadsafe(frames.put_nowait, frame)

        self.sink = sink
        on_progress = functools.partial(self.gang.watchdog.take, self.host)
        future = link.subscribe(self.run_name, offsets, sink, logs="rank0", on_progress=on_progress)
        try:
            await self._subscribed(future)
        except BaseException:
            # A link outlives many runs: whoever goes takes his sink along.
            if link.alive:
                link.unsubscribe(self.run_name, sink)
            raise
        self.gang.links[self.host] = link
        self.gang.deciding.linked(self.host)
        return link

    async def _subscribed(self, future: Future[dict[str, Any]]) -> None:
        """Wait for the host's answer, and note that it answers again."""
        try:
            async with asyncio.timeout(SUBSCRIBE_S):
                await asyncio.wrap_future(future)
        except TimeoutError:
            message = f"Host '{self.host}' did not answer 'subscribe' within {SUBSCRIBE_S:.0f} s."
            raise HostUnreachableError(self.host, message) from None
        if self.unreachable_since is not None:
            self.rt.log.info("Host '%s' answers again", self.host)
        if self.is_shown_away:
            await self.rt.note_host(self.host, "ready")
        self.unreachable_since, self.wait_s, self.is_shown_away = None, RECONNECT_FIRST_S, False

    async def _consume(self, link: HostLink) -> None:
        until = time.monotonic() + RESTARTED_READ_S
        try:
            while self.host not in self.gang.end.ended:
                try:
                    # wait_for of Python 3.11 loses a cancellation that comes together with a frame.
                    async with asyncio.timeout(LOG_COMMIT_S):
                        frame = await self.frames.get()
                except TimeoutError:
                    await self._commit_log()
                    if self.is_restarted and time.monotonic() > until:
                        raise self._lost("was restarted during") from None
                    continue
                if frame.t == "lost":
                    raise HostUnreachableError(self.host, f"The channel to host '{self.host}' broke.")
                await self._take(link, frame)
        finally:
            if link.alive:
                link.unsubscribe(self.run_name, self.sink)

    async def _take(self, link: HostLink, frame: Frame) -> None:
        assert frame.stream is not None
        if frame.t == "gap" and not frame.skip_bytes:
            await self._begin_anew(frame)
            return
        if frame.t == "gap":
            gap = (self.host, frame.stream, frame.skip_bytes, frame.offset, frame.reason)
            self.rt.log.warning("Host '%s', %s: %d bytes are missing at %d (%s)", *gap)
        if frame.stream == RANK0_LOG:
            await self._take_log(frame)
        else:
            await self._commit_events(link, frame)
        link.ack(self.run_name, frame.stream, frame.end)

    async def _begin_anew(self, frame: Frame) -> None:
        """Read a file from its start again: it is shorter than what we have of it."""
        stream = str(frame.stream)
        epoch = self.epochs.get(stream, 0) + frame.epoch
        self.rt.log.warning("Host '%s', %s: %s. It is read again from its start.", self.host, stream, frame.reason)
        if stream == RANK0_LOG:
            # Nobody writes to it any more; what it still has was shown.
            self.log_shown = max(self.log_shown, self.log_offset) if self.is_restarted else 0
            self.log_offset = 0
            return
        place = (self.rt.attempt_id, self.rt.watch, self.host, stream, frame.offset)
        await self.rt.db(self.rt.store.begin_epoch, *place, epoch, frame.reason)

    async def _take_log(self, frame: Frame) -> None:
        data = frame.data[max(0, self.log_shown - frame.offset) :]
        if data:
            self.rt.log.output(data)
            self.log_tail = (self.log_tail + data)[-LOG_TAIL_BYTES:]
        self.log_offset = frame.end
        if time.monotonic() - self.log_committed_at > LOG_COMMIT_S:
            await self._commit_log()

    async def _commit_events(self, link: HostLink, frame: Frame) -> None:
        stream = str(frame.stream)
        try:
            events = parse_events(frame.data)
        except CorruptEventError as error:
            where = f"Host '{self.host}', {stream} at {frame.offset}"
            raise HostProtocolError(self.host, f"{where}: {error}") from None
        place = (self.rt.attempt_id, self.rt.watch, self.host, stream, frame.offset, frame.end)
        epoch, offset_s = self.epochs.get(stream, 0) + frame.epoch, link.clock_offset_s
        commit = self.rt.db(self.rt.store.commit_events, *place, events, epoch=epoch, clock_offset_s=offset_s)
        for event in await asyncio.shield(commit):
            await self.gang.take(self.host, with_rank(stream, event), offset_s)

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
        if now - self.unreachable_since > SHOWN_AFTER_S and not self.is_shown_away:
            self.is_shown_away = await self.rt.note_host(self.host, "unreachable", str(error))
        limit_s = self.rt.gone_after_s
        is_over = self.rt.settings.orphan_timeout_s and now - self.unreachable_since > limit_s
        if is_over and not await self.rt.is_held():
            await self.rt.note_host(self.host, "lost", str(error))
            message = f"Host '{self.host}' did not answer for {limit_s:.0f} s: {error}"
            return self._give_up(HostSilentError(self.host, message))
        if self.gang.end.failed and now - self.unreachable_since > STOP_MARGIN_S:
            return self._give_up(error)
        await asyncio.sleep(self.wait_s * random.uniform(0.8, 1.2))  # noqa: S311
        self.wait_s = min(self.wait_s * 2, RECONNECT_MOST_S)

    def _give_up(self, error: HostError) -> None:
        self.gang.end.lost[self.host] = error
        self.gang.end.ended[self.host] = "lost"
        self.gang.changed.set()
