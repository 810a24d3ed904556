"""Intake of one host's events into the store.

Lines that the host may not send become gaps, with their place and reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.event_log import SUPERVISOR_KINDS, EventLine, EventSource, read_lines
from airflow_provider_dtrain.core.quotas import Quota, QuotaLimits, SupervisorQuota, supervisor_key, text_of
from airflow_provider_dtrain.engine.session.threads import in_thread
from airflow_provider_dtrain.errors import HostProtocolError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.redaction import Redactor
    from airflow_provider_dtrain.engine.session.runtime import Runtime
    from airflow_provider_dtrain.hooks.settings import Settings
    from airflow_provider_dtrain.hosts.wire import Frame

SUPERVISOR = "supervisor.events"
#: Most restarts of one events file per run. A crash of the host cuts a file once and ends the run; the rest is spare.
RESTARTS_MOST = 8
MASKED_RESULT = (
    "the returned value holds a secret or a private variable, which is masked there. To return the value of a "
    "variable, add its name to environment.public_variables"
)


class FrameContent(NamedTuple):
    """Content of a frame."""

    #: Events and gaps, as the store takes them.
    batch: list[JsonObject]
    #: (code, reason) of its gaps
    problems: dict[str, str]


class AttemptQuota:
    """Quota that the hosts of one attempt share, read from the store with the first frame."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._lock = asyncio.Lock()
        self._quota: Quota | None = None

    async def get(self) -> Quota:
        """Return the quota, which counts what earlier followers stored."""
        async with self._lock:
            if self._quota is None:
                usage = await self._rt.db(self._rt.store.events.usage, self._rt.attempt_id)
                self._quota = Quota(limits_of(self._rt.settings), usage)
            return self._quota


def limits_of(settings: Settings) -> QuotaLimits:
    """Return the limits of one attempt."""
    return QuotaLimits(
        events=settings.attempt_events_limit,
        checkpoints=settings.attempt_checkpoints_limit,
        metric_rows=settings.attempt_metric_rows_limit,
        metric_names=settings.attempt_metric_names_limit,
    )


class Intake:
    """Reader of the event frames of one host, which commits them.

    :param ranks: ranks that the attempt has on the host
    """

    def __init__(self, rt: Runtime, host: str, ranks: frozenset[int], quota: AttemptQuota) -> None:
        self._rt = rt
        self._host = host
        self._ranks = ranks
        self._quota = quota
        self._reported: set[tuple[str, str]] = set()
        #: stream -> byte that comes next, and how often it began again since the subscription
        self._places: dict[str, tuple[int, int]] = {}

    @property
    def streams(self) -> frozenset[str]:
        """Names of the files that the host may send."""
        ranks = {f"rank{rank}.{kind}" for rank in self._ranks for kind in ("events", "log")}
        return frozenset({SUPERVISOR, *ranks})

    def begin(self, offsets: Mapping[str, int]) -> None:
        """Record a new subscription.

        :param offsets: stream -> first byte that the host has to send
        """
        self._places = {stream: (offset, 0) for stream, offset in offsets.items()}

    def accept_restart(self, frame: Frame) -> None:
        """Record that a stream begins again.

        :raises HostProtocolError: the offset is not the expected one, or the epoch is not the next one
        """
        self._check(frame, epochs=1)
        if not frame.offset:
            raise HostProtocolError(
                self._host, f"Host '{self._host}' restarted {frame.stream}, of which nothing was stored."
            )
        self._places[str(frame.stream)] = (0, frame.epoch)

    async def refuse_restart(self, frame: Frame, epoch: int) -> None:
        """Store the refusal of a further restart of an events file as a gap, and raise.

        :param epoch: number of restarts that are stored
        :raises HostProtocolError: always
        """
        message = f"restarted more than {RESTARTS_MOST} times"
        mark = gap(frame.offset, 0, "restarted", f"the file was {message} and is not read again", lines=0)
        place = (self._rt.attempt_id, self._rt.watch, self._host, str(frame.stream), frame.offset, frame.offset)
        await self._rt.db(self._rt.store.events.commit, *place, [mark], epoch=epoch)
        raise HostProtocolError(self._host, f"The file {frame.stream} of host '{self._host}' was {message}.")

    def advance(self, frame: Frame) -> None:
        """Record a frame of a log, which is not stored here.

        :raises HostProtocolError: the frame does not continue its stream
        """
        self._check(frame)
        self._places[str(frame.stream)] = (frame.end, frame.epoch)

    def _check(self, frame: Frame, *, epochs: int = 0) -> None:
        """Raise when a frame does not continue its stream: the store would take it for another follower's."""
        offset, epoch = self._places.get(str(frame.stream), (0, 0))
        if (frame.offset, frame.epoch) != (offset, epoch + epochs):
            raise HostProtocolError(
                self._host,
                f"Host '{self._host}' sent {frame.stream} from byte {frame.offset} of epoch {frame.epoch}, "
                f"expected byte {offset} of epoch {epoch + epochs}.",
            )

    async def commit(self, frame: Frame, epoch: int, clock_offset_s: float) -> list[Mapping[str, Any]]:
        """Store a frame of events, or a gap that the host sent, and return the new events.

        :raises HostProtocolError: the frame does not continue its stream
        """
        stream = str(frame.stream)
        self._check(frame)
        redactor = await self._rt.redactor()
        if frame.t == "gap":
            reading = _masked(_gap_of(frame), redactor)
        else:
            quota = await self._quota.get()
            # Parsing a frame of 1 MiB takes 0.1 s, which is too long for the event loop.
            reading = await in_thread(_read_masked, frame, self._source(stream), quota, self._host, redactor)
        self._warn(stream, frame.offset, reading.problems)
        place = (self._rt.attempt_id, self._rt.watch, self._host, stream, frame.offset, frame.end)
        found = await self._rt.db(
            self._rt.store.events.commit, *place, reading.batch, epoch=epoch, clock_offset_s=clock_offset_s
        )
        self._places[stream] = (frame.end, frame.epoch)
        for event in reading.batch:
            if event["kind"] in SUPERVISOR_KINDS:
                usage = (await self._quota.get()).usage
                usage.of_supervisors.setdefault(supervisor_key(self._host, event), set()).add(event["seq"])
        return found

    def _source(self, stream: str) -> EventSource:
        rank = None if stream == SUPERVISOR else int(stream.removeprefix("rank").partition(".")[0])
        return EventSource(rank, self._ranks)

    def _warn(self, stream: str, offset: int, problems: Mapping[str, str]) -> None:
        """Log the first gap of each kind. The store has all of them."""
        for code, reason in problems.items():
            if (stream, code) not in self._reported:
                self._reported.add((stream, code))
                self._rt.log.warning("Host '%s', %s at byte %d: %s", self._host, stream, offset, reason)


def _read_masked(frame: Frame, source: EventSource, quota: Quota, host: str, redactor: Redactor) -> FrameContent:
    return _masked(read(frame, source, quota, host), redactor)


def _masked(reading: FrameContent, redactor: Redactor) -> FrameContent:
    problems = {code: redactor.rank_text(reason) for code, reason in reading.problems.items()}
    batch = [redactor.event(event) for event in reading.batch]
    pairs = zip(batch, reading.batch, strict=True)
    if any(one["kind"] == "returned" and one["json"] != old["json"] for one, old in pairs):
        problems["masked"] = MASKED_RESULT
    return FrameContent(batch, problems)


def read(frame: Frame, source: EventSource, quota: Quota, host: str = "") -> FrameContent:
    """Return the events of a frame that may be stored, and a gap for every run of lines that may not.

    :param host: host that sent it; its supervisor's events are counted under this name
    """
    batch: list[JsonObject] = []
    problems: dict[str, str] = {}
    of_supervisor = SupervisorQuota(host, quota.usage)
    for line in read_lines(frame.data, source):
        event = line.event
        code = line.code
        reason = line.reason
        if event is not None and source.rank is None:
            is_new = of_supervisor.admit(event)
            if is_new is None:
                continue
            if not is_new:
                code = "repeated"
                reason = f"one '{event['kind']}' more than a supervisor writes"
                event = None
        elif event is not None:
            verdict = quota.admit(event, line.size)
            event = dict(verdict.event) if verdict.event is not None else None
            code = verdict.option
            reason = text_of(code, quota.limits) if code else ""
        if event is not None:
            batch.append(event)
        if code:
            problems.setdefault(code, reason)
            _add_gap(batch, frame.offset, line, code, problems[code], is_left_out=event is None)
    return FrameContent(batch, problems)


def _add_gap(batch: list[JsonObject], base: int, line: EventLine, code: str, reason: str, *, is_left_out: bool) -> None:
    offset = base + line.start
    size = line.size if is_left_out else 0
    last = batch[-1] if batch else None
    if last is not None and last["kind"] == "gap" and last["code"] == code:
        last["bytes"] += size
        last["lines"] += 1
        return
    batch.append(gap(offset, size, code, reason))


def gap(offset: int, size: int, code: str, reason: str, lines: int = 1) -> JsonObject:
    """Return the mark for bytes of a stream that are not in the store.

    :param offset: where they begin
    :param code: ``corrupt``, ``invalid``, ``repeated``, ``restarted``, ``unfinished``, ``missing``, or the option whose
        limit was hit
    """
    return {
        "kind": "gap",
        "seq": None,
        "at": time.time(),
        "offset": offset,
        "bytes": size,
        "lines": lines,
        "code": code,
        "reason": reason,
    }


def _gap_of(frame: Frame) -> FrameContent:
    reason = frame.reason or "the host gave no reason"
    mark = gap(frame.offset, frame.skip_bytes, "missing", reason[:500], lines=0)
    return FrameContent([mark], {"missing": f"{frame.skip_bytes} bytes are missing: {reason[:500]}"})
