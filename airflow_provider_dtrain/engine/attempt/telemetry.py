"""Collection of an attempt's telemetry: every 10 s a request to each host, and one transaction.

Telemetry makes room for everything else. It is requested, so a host sends no more than was asked for; nothing is kept
in memory while the store is away; a request or commit that fails is dropped, and the next one resumes at the position
in the store. What a host has dropped meanwhile is a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import (
    TELEMETRY_BEHIND_S,
    TELEMETRY_CLOCK_S,
    TELEMETRY_COMPACT_S,
    TELEMETRY_END_S,
    TELEMETRY_MOST_S,
    TELEMETRY_PRUNE_S,
    TELEMETRY_S,
    TELEMETRY_TIMEOUT_S,
)
from airflow_provider_dtrain.core.series.measurements import Clock, Measured, read
from airflow_provider_dtrain.core.series.points import Key, Points
from airflow_provider_dtrain.engine.attempt.stragglers import StragglerReporter
from airflow_provider_dtrain.engine.attempt.stream import ranks_of
from airflow_provider_dtrain.engine.session.background import alongside
from airflow_provider_dtrain.engine.session.threads import in_telemetry_thread
from airflow_provider_dtrain.errors import (
    DtrainError,
    HostError,
    HostProtocolError,
    NotFoundError,
    StaleWatchError,
)
from airflow_provider_dtrain.hosts.channel.answers import Measurements, measurements_of
from airflow_provider_dtrain.store.records.telemetry import HostTelemetry, TelemetryGap, TelemetryState

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.series.step_times import SlowRule
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hosts.channel.link import HostLink
    from airflow_provider_dtrain.store.records.trials import AttemptView

log = logging.getLogger(__name__)

#: File of a host's system metrics.
SAMPLES = "samples"
#: Most bytes of one answer. A host with eight GPUs writes 5 kB per second.
ANSWER_BYTES = 256 << 10
#: A file with more unread bytes is read from its last :data:`KEPT_BYTES` on.
LAG_BYTES, KEPT_BYTES = 8 << 20, 1 << 20
#: Bytes per second that a host may send on average, for itself and for each rank, and bytes that it may send at once
#: after a pause. A host with eight GPUs writes 1 kB/s at the usual interval, a rank 0.5 kB/s.
HOST_RATE, RANK_RATE, BURST_BYTES = 32 << 10, 4 << 10, 16 << 20
#: Hosts that are asked at the same time.
HOSTS_AT_ONCE = 16
#: Transactions of one removal of old telemetry.
PRUNINGS_MOST = 50


@dataclass(frozen=True, kw_only=True)
class TelemetryPiece:
    """Points in one answer of a host."""

    series: Mapping[Key, Points] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
    gaps: tuple[TelemetryGap, ...] = ()
    #: True: the host has more.
    is_behind: bool = False


class Allowance:
    """Bytes that a host may still send, refilled as time passes.

    :param per_s: bytes per second
    """

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left: float = BURST_BYTES
        self._at = time.monotonic()

    def has_room(self) -> bool:
        """Return whether the host may be asked for another answer."""
        now = time.monotonic()
        self._left = min(BURST_BYTES, self._left + (now - self._at) * self._per_s)
        self._at = now
        return self._left >= ANSWER_BYTES

    def take(self, size: int) -> None:
        """Count received bytes."""
        self._left -= size


class TelemetryCollector:
    """Collector of the telemetry of one attempt, as long as its follower follows it.

    :param links: host -> its open channel, updated by the follower
    :param rule: by which a rank is slow
    """

    def __init__(self, rt: Runtime, view: AttemptView, links: Mapping[str, HostLink], rule: SlowRule) -> None:
        self.rt = rt
        self.view = view
        self.links = links
        self._stragglers = StragglerReporter(rt, view, rule)
        self._sources = {host: sources_of(view, host) for host in view.placement}
        begun = view.granted_at or view.created_at
        self._earliest_s = begun.timestamp() - TELEMETRY_CLOCK_S
        #: State of each host in the store; None: it must be read.
        self._states: dict[str, TelemetryState] | None = None
        #: Hosts that have more than their last answer.
        self._behind: set[str] = set()
        #: Channels that broke the protocol.
        self._broken: set[HostLink] = set()
        self._wait_s = TELEMETRY_S
        #: time.monotonic() of the next compaction of the slices in the store.
        self._next_compaction = 0.0
        self._is_on = True
        self._allowances = {
            host: Allowance(HOST_RATE + RANK_RATE * (len(self._sources[host]) - 1)) for host in self._sources
        }

    @contextlib.asynccontextmanager
    async def collecting(self, *, is_on: bool) -> AsyncIterator[None]:
        """Collect while the block runs.

        :param is_on: False: the attempt measures nothing
        """
        self._is_on = is_on
        async with alongside(self.run()) if is_on else contextlib.nullcontext():
            yield

    async def run(self) -> None:
        """Collect until the task is cancelled, or another process follows the attempt."""
        while True:
            behind = [host for host in self._behind if self._is_open(host)]
            await asyncio.sleep(TELEMETRY_BEHIND_S if behind else self._wait_s)
            began = time.monotonic()
            try:
                await self._collect(behind or self.links)
                await self._keep_up()
            except (StaleWatchError, NotFoundError):
                return
            except Exception as error:
                self._drop(error)
                continue
            # A machine or store that is slow gets less.
            took_s = time.monotonic() - began
            self._wait_s = min(TELEMETRY_MOST_S, max(TELEMETRY_S, 4 * took_s))

    async def finish(self) -> None:
        """Collect what is left after the end of the ranks, and compact it. Takes a few seconds at most."""
        if not self._is_on:
            return
        try:
            async with asyncio.timeout(TELEMETRY_END_S):
                await self._collect(self.links)
                while any(map(self._is_open, self._behind)):
                    await self._collect(self._behind)
                await in_telemetry_thread(self.rt.store.telemetry.compact, self.view.attempt_id)
        except Exception as error:
            # Retention compacts what is left.
            log.info("The last telemetry of attempt %d is left out: %r", self.view.attempt_id, error)

    def _drop(self, error: Exception) -> None:
        """Continue after a failure, with longer pauses: what was received is requested again later."""
        self._states = None
        self._behind = set()
        self._wait_s = min(TELEMETRY_MOST_S, 2 * self._wait_s)
        expected = isinstance(error, DtrainError)
        log.log(
            logging.INFO if expected else logging.ERROR,
            "Telemetry of attempt %d is requested again in %.0f s: %r",
            self.view.attempt_id, self._wait_s, error, exc_info=None if expected else error,
        )  # fmt: skip

    async def _collect(self, hosts: Iterable[str]) -> None:
        store = self.rt.store.telemetry
        if self._states is None:
            self._states = await in_telemetry_thread(store.states, self.view.attempt_id)
        limit = asyncio.Semaphore(HOSTS_AT_ONCE)
        wanted = [host for host in hosts if self._is_open(host)]
        pieces = await asyncio.gather(*(self._ask(host, limit) for host in wanted))
        found = {host: piece for host, piece in zip(wanted, pieces, strict=True) if piece is not None}
        parts = [self._part(host, piece) for host, piece in found.items() if piece.positions]
        self._behind = (self._behind - found.keys()) | {host for host, piece in found.items() if piece.is_behind}
        if not parts:
            return
        known = self._states
        # Until the commit is known to have worked.
        self._states = None
        stored = await in_telemetry_thread(store.add, self.rt.attempt_id, self.rt.watch, parts)
        self._states = {**known, **stored} if stored is not None else None
        if stored is not None:
            await self._stragglers.take({part.host: part.series for part in parts})

    def _is_open(self, host: str) -> bool:
        link = self.links.get(host)
        is_usable = link is not None and link.alive and link not in self._broken
        return is_usable and self._allowances[host].has_room()

    def _part(self, host: str, piece: TelemetryPiece) -> HostTelemetry:
        state = (self._states or {}).get(host)
        return HostTelemetry(
            host=host,
            series=piece.series,
            positions=piece.positions,
            gaps=piece.gaps,
            commits=state.commits if state is not None else 0,
        )

    async def _ask(self, host: str, limit: asyncio.Semaphore) -> TelemetryPiece | None:
        """Return the next points of a host, None when it does not answer as expected."""
        async with limit:
            link = self.links[host]
            try:
                found = await self._request(host, link)
                self._allowances[host].take(sum(len(one.data) for one in found))
                clock = Clock(boot_s=link.boot_offset_s, wall_s=link.clock_offset_s)
                return await in_telemetry_thread(self._points, host, found, clock)
            except HostProtocolError as error:
                # Until the next channel. Events and logs have rules of their own.
                self._broken.add(link)
                log.warning("Host '%s' sends no telemetry on this channel: %s", host, error)
            except HostError as error:
                log.debug("Host '%s' sent no telemetry: %s", host, error)
            return None

    async def _request(self, host: str, link: HostLink) -> list[Measurements]:
        streams = {name: self._position(host, name) for name in self._sources[host]}
        arguments = {"streams": streams, "most_bytes": ANSWER_BYTES}
        call = link.call("telemetry", timeout_s=TELEMETRY_TIMEOUT_S, run=self.view.run, **arguments)
        answer = await asyncio.wrap_future(call)
        return measurements_of(host, answer, streams=streams, most_bytes=ANSWER_BYTES)

    def _position(self, host: str, stream: str) -> int:
        state = (self._states or {}).get(host)
        return state.positions.get(stream, 0) if state is not None else 0

    def _points(self, host: str, found: list[Measurements], clock: Clock) -> TelemetryPiece:
        """Return the points in an answer. Runs in a thread, because parsing takes milliseconds."""
        series: dict[Key, Points] = {}
        positions: dict[str, int] = {}
        gaps: list[TelemetryGap] = []
        is_behind = False
        now = time.time()
        for one in found:
            source = self._sources[host][one.stream]
            latest = now + TELEMETRY_CLOCK_S
            reading = read(one.data, source, clock, earliest_s=self._earliest_s, latest_s=latest)
            end = one.offset + reading.taken
            before = self._position(host, one.stream)
            missing = one.offset - before
            if not reading.taken and len(one.data) >= ANSWER_BYTES // max(1, len(self._sources[host])):
                # A line longer than an answer.
                end = one.offset + len(one.data)
                reading.miss("invalid", now, 1, len(one.data))
            if one.end - end > LAG_BYTES:
                missing += one.end - KEPT_BYTES - end
                end = one.end - KEPT_BYTES
            if missing > 0:
                reading.miss("missing", now, 0, missing)
            if end > before or reading.gaps:
                positions[one.stream] = end
            is_behind = is_behind or (bool(one.data) and one.end > one.offset + len(one.data))
            series.update(reading.series)
            gaps += [
                TelemetryGap(stream=one.stream, code=code, lines=lines, size_bytes=size, first_at_s=at)
                for code, (lines, size, at) in reading.gaps.items()
            ]
        return TelemetryPiece(series=series, positions=positions, gaps=tuple(gaps), is_behind=is_behind)

    async def _keep_up(self) -> None:
        """Compact the slices of this attempt and remove what is old, each after a while."""
        if time.monotonic() >= self._next_compaction:
            self._next_compaction = time.monotonic() + TELEMETRY_COMPACT_S
            self._states = None
            await in_telemetry_thread(self.rt.store.telemetry.compact, self.view.attempt_id)
        if _prune_due():
            await in_telemetry_thread(self._prune)

    def _prune(self) -> None:
        pruned = self.rt.store.telemetry.prune(self.rt.settings.telemetry_days)
        for _ in itertools.islice(pruned, PRUNINGS_MOST):
            pass


def sources_of(view: AttemptView, host: str) -> dict[str, Measured]:
    """Return the files of measurements of a host, with what each may have."""
    plan = ((view.plan or {}).get("plans") or {}).get(host) or {}
    devices = frozenset(str(rank["device"]) for rank in plan.get("ranks", ()) if rank.get("device"))
    own = frozenset(ranks_of(view, host))
    ranks = {f"rank{rank}.timings": Measured(rank=rank) for rank in sorted(own)}
    return {SAMPLES: Measured(rank=None, devices=devices, ranks=own), **ranks}


#: time.monotonic() of the next removal of old telemetry by this process.
_next_pruning = 0.0


def _prune_due() -> bool:
    """Return whether this process has not removed old telemetry for a while, and count this as a removal."""
    global _next_pruning
    now = time.monotonic()
    if now < _next_pruning:
        return False
    _next_pruning = now + TELEMETRY_PRUNE_S
    return True
