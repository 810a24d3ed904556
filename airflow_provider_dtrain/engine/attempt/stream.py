"""Stream of one host's logs, events and exits of a run, committed before the host discards anything."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.core.lifecycle.timing import (
    BREACHES_WITHIN_S,
    RECONNECT_FIRST_S,
    RECONNECT_MOST_S,
    RESTARTED_READ_S,
    SHOWN_AFTER_S,
    STEADY_S,
    STOP_MARGIN_S,
    SUBSCRIBE_S,
)
from airflow_provider_dtrain.engine.attempt.event_intake import RESTARTS_MOST, Intake
from airflow_provider_dtrain.engine.logs.rank_log import RANK0_LOG
from airflow_provider_dtrain.errors import (
    DtrainError,
    HostError,
    HostLostError,
    HostProtocolError,
    HostRefusedError,
    HostSilentError,
    HostUnreachableError,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from airflow_provider_dtrain.engine.attempt.event_intake import AttemptQuota
    from airflow_provider_dtrain.engine.attempt.gang import Gang
    from airflow_provider_dtrain.engine.logs.rank_log import RankLog
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.hosts.wire import Frame, ProgressFrame
    from airflow_provider_dtrain.store.records.trials import AttemptView

log = logging.getLogger(__name__)

POLL_S = 1.0
_RANK_EVENTS = re.compile(r"rank(\d+)\.events")
#: Number of protocol violations within :data:`BREACHES_WITHIN_S` that end a host's part.
BREACHES_MOST = 5
#: Seconds of work on the events of one frame, after which other coroutines run.
TURN_S = 0.02


def with_rank(stream: str, event: Mapping[str, Any]) -> JsonObject:
    """Return an event with the rank that wrote it, if a rank did."""
    found = _RANK_EVENTS.fullmatch(stream)
    return {**event, "rank": int(found[1])} if found else dict(event)


def ranks_of(view: AttemptView, host: str) -> frozenset[int]:
    """Return the ranks that an attempt has on a host."""
    plan = ((view.plan or {}).get("plans") or {}).get(host) or {}
    return frozenset(int(rank["rank"]) for rank in plan.get("ranks", ()))


class HostFollower:
    """Follower of the part of a gang on one host.

    :param quota: quota that the gang's hosts share
    :param on_link: called with the host after a channel was subscribed to the run
    :param on_progress: called with (host, report) for each heartbeat, in the channel's thread
    :param on_event: called with (host, event, seconds by which the host's clock is ahead) once the event is stored
    """

    def __init__(
        self,
        rt: Runtime,
        gang: Gang,
        host: str,
        *,
        quota: AttemptQuota,
        on_link: Callable[[str], None],
        on_progress: Callable[[str, ProgressFrame], None],
        on_event: Callable[[str, JsonObject, float], None],
    ) -> None:
        self.rt = rt
        self.gang = gang
        self.host = host
        self.run_name = gang.run_name
        self.on_link = on_link
        self.on_progress = on_progress
        self.on_event = on_event
        self.boot_id = (gang.view.plan or {}).get("boots", {}).get(host)
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.sink: Callable[[Frame], None] | None = None
        #: Rank 0's log, on its host; it outlives connections.
        self.log: RankLog | None = None
        self.log_committed = 0
        #: How often rank 0's log began again, over all connections.
        self.log_restarts = 0
        #: stream -> how often it had begun again before the subscription
        self.epochs: dict[str, int] = {}
        self.is_linked = self.is_restarted = self.is_shown_away = False
        self.unreachable_since: float | None = None
        self.wait_s = RECONNECT_FIRST_S
        #: time.monotonic() of the latest protocol violations.
        self.breaches: deque[float] = deque(maxlen=BREACHES_MOST)
        self.intake = Intake(self.rt, host, ranks_of(gang.view, host), quota)

    async def run(self) -> None:
        """Follow the host's part until it has ended, and reconnect as often as needed."""
        while self.host not in self.gang.end.ended:
            self.is_linked = False
            try:
                link = await self._subscribe()
                await self._consume(link)
                if self.log is not None:
                    self.log.is_complete = True
            except HostLostError as error:
                return self._give_up(error)
            except HostRefusedError as error:
                if error.code == "unknown_run":
                    return self._give_up(self._lost("has no trace of"))
                await self._back_off(error)
            except HostProtocolError as error:
                # A handshake that cannot be read may come from a machine that is starting. It counts as silence.
                if self.is_linked and self._is_hopeless():
                    return self._give_up(self._broken(error))
                await self._back_off(error)
            except HostError as error:
                await self._back_off(error)
            finally:
                if self.log is not None:
                    await asyncio.shield(self.log.commit(at_once=True))

    def _lost(self, what: str) -> HostLostError:
        after = " It was restarted meanwhile." if self.is_restarted and "restarted" not in what else ""
        return HostLostError(self.host, f"Host '{self.host}' {what} run {self.run_name}.{after}")

    def _is_hopeless(self) -> bool:
        """Count a protocol violation, and return whether there are too many."""
        self.breaches.append(time.monotonic())
        return len(self.breaches) == BREACHES_MOST and self.breaches[-1] - self.breaches[0] < BREACHES_WITHIN_S

    def _broken(self, error: HostError) -> HostProtocolError:
        return HostProtocolError(
            self.host,
            f"Host '{self.host}' broke the protocol {BREACHES_MOST} times, its part of the run is ended: {error}",
        )

    async def _subscribe(self) -> HostLink:
        link = await self.rt.link(self.host)
        self.is_linked = True
        self.is_restarted = bool(self.boot_id) and link.hello.boot_id != self.boot_id
        store = self.rt.store
        attempt_id = self.rt.attempt_id
        stored = await self.rt.db(store.events.offsets, attempt_id)
        self.epochs = {
            stream: epoch
            for (host, stream), epoch in (await self.rt.db(store.events.epochs, attempt_id)).items()
            if host == self.host
        }
        offsets = {stream: offset for (host, stream), offset in stored.items() if host == self.host}
        self.log_committed = offsets.get(RANK0_LOG, 0)
        if self.log is not None:
            offsets[RANK0_LOG] = self.log.received
        elif (emptied := self.rt.logs.begin_of(self.gang.view, self.log_committed)) != self.log_committed:
            offsets[RANK0_LOG] = emptied
        self.intake.begin(offsets)
        frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.frames = frames
        loop = asyncio.get_running_loop()

        def sink(frame: Frame) -> None:
            loop.call_soon_threadsafe(frames.put_nowait, frame)

        self.sink = sink
        on_progress = functools.partial(self.on_progress, self.host)
        future = link.subscribe(
            self.run_name,
            offsets,
            sink,
            logs="rank0" if self.rt.logs.wanted else "none",
            on_progress=on_progress,
            streams=self.intake.streams,
        )
        try:
            await self._subscribed(future)
        except BaseException:
            # A link outlives many runs, so a follower that leaves removes its sink.
            if link.alive:
                link.unsubscribe(self.run_name, sink)
            raise
        self.gang.links[self.host] = link
        self.on_link(self.host)
        return link

    async def _subscribed(self, future: Future[JsonObject]) -> None:
        try:
            async with asyncio.timeout(SUBSCRIBE_S):
                await asyncio.wrap_future(future)
        except TimeoutError:
            message = f"Host '{self.host}' did not answer 'subscribe' within {SUBSCRIBE_S:.0f} s."
            raise HostUnreachableError(self.host, message) from None

    async def _progressed(self) -> None:
        """Record that the connection works again, and reset the back-off."""
        if self.unreachable_since is not None:
            self.rt.log.info("Host '%s' answers again", self.host)
        if self.is_shown_away:
            await self.rt.note_host(self.host, HostState.READY)
        self.unreachable_since = None
        self.wait_s = RECONNECT_FIRST_S
        self.is_shown_away = False

    async def _consume(self, link: HostLink) -> None:
        since = time.monotonic()
        until = since + RESTARTED_READ_S
        try:
            while self.host not in self.gang.end.ended:
                try:
                    # wait_for of Python 3.11 loses a cancellation that comes together with a frame.
                    async with asyncio.timeout(POLL_S):
                        frame = await self.frames.get()
                except TimeoutError:
                    if self.log is not None:
                        await self.log.commit()
                    if time.monotonic() - since > STEADY_S:
                        await self._progressed()
                    if self.is_restarted and time.monotonic() > until:
                        raise self._lost("was restarted during") from None
                    continue
                if frame.t == "lost":
                    raise self._lost_channel(frame)
                await self._take_bounded(link, frame)
                await self._progressed()
        finally:
            if link.alive:
                link.unsubscribe(self.run_name, self.sink)

    def _lost_channel(self, frame: Frame) -> HostError:
        if isinstance(frame.error, HostLostError):
            return frame.error
        if isinstance(frame.error, HostProtocolError):
            return HostProtocolError(self.host, str(frame.error))
        return HostUnreachableError(self.host, f"The channel to host '{self.host}' broke.")

    async def _take_bounded(self, link: HostLink, frame: Frame) -> None:
        """Handle a frame, and count a frame that cannot be handled as a protocol violation."""
        try:
            await self._take(link, frame)
        except DtrainError:
            raise
        except Exception as error:
            log.exception("A frame of %s from host '%s' could not be handled", frame.stream, self.host)
            message = f"Host '{self.host}' sent a frame of {frame.stream} that cannot be handled: {error!r:.500}"
            raise HostProtocolError(self.host, message) from error

    async def _take(self, link: HostLink, frame: Frame) -> None:
        assert frame.stream is not None
        if frame.stream == RANK0_LOG and not self.rt.logs.wanted:
            # Sent to the follower whose connection recovery uses now. The task log of another trial must not take it.
            link.ack(self.run_name, frame.stream, frame.end)
            return
        if frame.t == "gap" and not frame.skip_bytes:
            await self._restart(frame)
            return
        if frame.stream == RANK0_LOG:
            await self._take_log(frame)
        else:
            await self._commit_events(link, frame)
        link.ack(self.run_name, frame.stream, frame.end)

    async def _restart(self, frame: Frame) -> None:
        """Read a file from its start again, because it is shorter than the part that was received."""
        stream = str(frame.stream)
        epoch = self.epochs.get(stream, 0) + frame.epoch
        self.intake.accept_restart(frame)
        if stream == RANK0_LOG:
            self.log_restarts += 1
            if self.log_restarts > RESTARTS_MOST:
                message = f"Host '{self.host}' restarted {stream} more than {RESTARTS_MOST} times."
                raise HostProtocolError(self.host, message)
        elif epoch > RESTARTS_MOST:
            await self.intake.refuse_restart(frame, epoch - 1)
        message = "Host '%s', %s: %s. It is read again from its start."
        self.rt.log.event(message, self.host, stream, frame.reason, is_warning=True)
        if stream == RANK0_LOG:
            self._rank_log().restart(is_known=self.is_restarted)
            return
        place = (self.rt.attempt_id, self.rt.watch, self.host, stream, frame.offset)
        await self.rt.db(self.rt.store.events.begin_epoch, *place, epoch, frame.reason)

    def _rank_log(self) -> RankLog:
        if self.log is None:
            self.log = self.rt.logs.follow(self.gang.view, self.host, self.log_committed)
        return self.log

    async def _take_log(self, frame: Frame) -> None:
        redactor = await self.rt.redactor()
        self.intake.advance(frame)
        log = self._rank_log()
        if frame.t == "gap":
            log.skip(frame.offset, frame.end, frame.reason)
        else:
            log.take(frame.offset, frame.data, redactor)
        await log.commit()
        # A queue that is not empty never suspends its reader. Let other trials run between two frames.
        await asyncio.sleep(0)

    async def _commit_events(self, link: HostLink, frame: Frame) -> None:
        stream = str(frame.stream)
        epoch = self.epochs.get(stream, 0) + frame.epoch
        offset_s = link.clock_offset_s
        events = await asyncio.shield(self.intake.commit(frame, epoch, offset_s))
        turn_by = time.monotonic() + TURN_S
        for event in events:
            self.on_event(self.host, with_rank(stream, event), offset_s)
            if time.monotonic() > turn_by:
                await asyncio.sleep(0)
                turn_by = time.monotonic() + TURN_S

    async def _back_off(self, error: HostError) -> None:
        """Wait before the next connection, or give the host up when its run must have ended itself."""
        now = time.monotonic()
        if self.unreachable_since is None:
            self.unreachable_since = now
            self.rt.log.warning("%s The ranks keep running there; reconnecting.", error)
        if now - self.unreachable_since > SHOWN_AFTER_S and not self.is_shown_away:
            self.is_shown_away = await self.rt.note_host(self.host, HostState.UNREACHABLE, str(error))
        limit_s = self.rt.lost_after_s
        is_over = self.rt.settings.orphan_timeout_s and now - self.unreachable_since > limit_s
        if is_over and not await self.rt.is_held():
            await self.rt.note_host(self.host, HostState.LOST, str(error))
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
