"""Wire format of a follow channel: one greeting, then JSON lines, some followed by raw bytes.

A machine that runs the user's code writes everything that this module reads. The input is therefore
bounded in size and checked, and messages show it escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

from msgspec import Meta, Struct, ValidationError, convert

from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.core.lifecycle.watchdog import RankReport
from airflow_provider_dtrain.core.untrusted_fields import Count, ShortText, Span
from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError, is_count, parse_object
from airflow_provider_dtrain.errors import HostError, UserError

PROTOCOL = 1
MAGIC = f"DTRAIN/{PROTOCOL} ".encode()
#: Maximum length of a line in either direction, and of the raw bytes after a line.
LINE_LIMIT_BYTES = 8 * 1024 * 1024
RAW_LIMIT_BYTES = 16 * 1024 * 1024
#: Maximum nesting depth and number of values of a line. Each `{}` of `{},{},...` takes 70 bytes as an object.
MAX_DEPTH, MAX_VALUES = 32, 1_000_000
#: Maximum number of stores in a greeting, of runs in a beat and of ranks in a report.
STORES_LIMIT, RUNS_LIMIT, RANKS_LIMIT = 10_000, 20_000, 8192
#: Maximum number of bytes that a login script may print before the greeting.
NOISE_LIMIT_BYTES = 64 * 1024
_SHOWN = 200

Record = TypeVar("Record")


class WireError(ValueError):
    """The host sent something that the protocol does not define."""


class GreetingRefusedError(Exception):
    """The supervisor started, but refuses to serve.

    :param answer: its refusal, in the form of an answer to a command
    """

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.answer = answer
        super().__init__("refused")


@dataclass(frozen=True, kw_only=True)
class Hello:
    """First line of a channel, with the machine, account and interpreter that answer."""

    protocol: Count
    machine_id: ShortText
    boot_id: ShortText
    #: Inode of the PID namespace: containers on one machine share the two identities above.
    pid_ns: Count | ShortText
    uid: Count
    python: ShortText
    executable: ShortText
    state_dir: ShortText
    #: The host's CLOCK_BOOTTIME when it wrote the line.
    boottime_s: Span
    hostname: ShortText
    #: The host's wall clock at that moment, None if the host did not send it.
    wall_s: Span | None = None
    #: Distinguishes, together with the boot ID, the boots of containers; 0 if the host did not send it.
    pid1_start_time: Count = 0
    #: Store ID -> highest token that the host has received from it.
    stores: Annotated[dict[str, Count], Meta(max_length=STORES_LIMIT)] = field(default_factory=dict, compare=False)

    @property
    def identity(self) -> tuple[str, str, int | str]:
        """Identity of this boot of this machine."""
        return self.machine_id, self.boot_id, self.pid_ns

    @classmethod
    def parse(cls, line: bytes) -> Hello:
        """Return the greeting from the JSON after the magic.

        :raises WireError: a key is missing or of the wrong type, or the protocol is another one
        :raises GreetingRefusedError: the greeting is a refusal
        """
        document = parse_line(line)
        if isinstance(document.get("error"), dict):
            raise GreetingRefusedError(document["error"])
        hello = fields_of(document, cls, "a greeting")
        if hello.protocol != PROTOCOL:
            raise WireError(f"protocol {hello.protocol} instead of {PROTOCOL}")
        return hello


def fields_of(document: Mapping[str, Any], kind: type[Record], subject: str) -> Record:
    """Return the fields of a document as a record, without those that the record lacks.

    The check ends at the first wrong field, so a document with many of them takes no further memory.

    :param subject: names the document in a message
    :raises WireError: a field is missing or of the wrong type
    """
    try:
        return convert(document, kind)
    except ValidationError as error:
        raise WireError(f"{subject} with wrong fields, {error}: {shown(json.dumps(document).encode())}") from None


class _Frame(TypedDict):
    run: ShortText
    stream: ShortText
    offset: NotRequired[Count]
    epoch: NotRequired[Annotated[int, Meta(ge=0, lt=2**31)]]
    skip_bytes: NotRequired[Count]


class Frame(Struct, frozen=True, kw_only=True):
    """Message of a host that is not an answer to a command.

    ``t`` is ``data`` (bytes of a stream), ``gap`` (bytes that are missing), or ``lost``: the channel is
    dead, and no further frame follows.
    """

    t: str
    run: str | None = None
    #: ``supervisor.events``, ``rank<k>.events`` or ``rank<k>.log``.
    stream: str | None = None
    #: Position of the first byte of ``data``, counted over all bytes ever written.
    offset: int = 0
    data: bytes = b""
    #: Number of restarts of the stream, e.g. after a crash of the host truncated the file.
    epoch: int = 0
    #: Reason why bytes are missing or the channel is dead.
    reason: str = ""
    #: Length of a gap.
    skip_bytes: int = 0
    #: Error that the users of a dead channel raise.
    error: HostError | None = None

    @property
    def end(self) -> int:
        """Position after this frame, which is the next offset to commit."""
        return self.offset + self.skip_bytes + len(self.data)

    @classmethod
    def parse(cls, document: Mapping[str, Any], raw: bytes) -> Frame:
        """Return the frame.

        :raises WireError: a field is missing or of the wrong type
        """
        known = fields_of(document, _Frame, "a frame")
        return cls(t=document["t"], data=raw, reason=plain(document.get("reason", "")), **known)


class Beat(TypedDict):
    """Sign of life of a host, with the runs whose leases are to be renewed."""

    boottime_s: Span
    runs: Annotated[list[ShortText], Meta(max_length=RUNS_LIMIT)]


class LostRun(TypedDict):
    """Loss of a run on a host."""

    run: ShortText
    reason: ShortText


class _Progress(TypedDict):
    run: ShortText
    boottime_s: Span
    ranks: Annotated[list[JsonObject], Meta(max_length=RANKS_LIMIT)]
    supervisor_stopped_s: NotRequired[Span]


@dataclass(frozen=True, kw_only=True)
class ProgressFrame:
    """Progress of the ranks of a run on one host at one moment."""

    run: str
    #: The host's CLOCK_BOOTTIME at that moment.
    boottime_s: float
    ranks: tuple[RankReport, ...]
    #: Seconds for which the run's supervisor has been stopped by a signal.
    supervisor_stopped_s: float = 0.0

    @classmethod
    def parse(cls, document: Mapping[str, Any], host: str) -> ProgressFrame:
        """Return the report.

        :raises WireError: a field is missing or of the wrong type
        """
        known = fields_of(document, _Progress, "a progress report")
        ranks = tuple(_rank_report(rank, host) for rank in known["ranks"])
        stopped_s = known.get("supervisor_stopped_s", 0.0)
        return cls(run=known["run"], boottime_s=known["boottime_s"], ranks=ranks, supervisor_stopped_s=stopped_s)


def _rank_report(document: Mapping[str, Any], host: str) -> RankReport:
    """Return a host's report of one rank, without unknown fields."""
    report = fields_of({**document, "host": host}, RankReport, "a progress report of a rank")
    return replace(
        report,
        state=plain(report.state, 60),
        phase=plain(report.phase, 60),
        what=plain(report.what, 60),
        raised=plain(report.raised, 120),
    )


class FrameReader:
    """Splits a byte stream into JSON objects, each with the raw bytes that belong to it."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._waiting: tuple[JsonObject, int] | None = None

    def feed(self, data: bytes) -> Iterator[tuple[JsonObject, bytes]]:
        """Yield every object that is now complete.

        :raises WireError: a line is too long, or is not a JSON object
        """
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> tuple[JsonObject, bytes] | None:
        if self._waiting is None:
            line = self._line()
            if line is None:
                return None
            document = parse_line(line)
            self._waiting = document, _raw_length(document, line)
        document, length = self._waiting
        if len(self._buffer) < length:
            return None
        self._waiting = None
        return document, self._take(length)

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._scanned)
        if end < 0:
            self._scanned = len(self._buffer)
        if max(end, self._scanned) > LINE_LIMIT_BYTES:
            raise WireError(f"a line of more than {LINE_LIMIT_BYTES} bytes: {shown(self._buffer)}")
        return None if end < 0 else self._take(end + 1)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._scanned = 0
        return taken


def _raw_length(document: Mapping[str, Any], line: bytes) -> int:
    length = document.get("bytes", 0)
    if not is_count(length) or length > RAW_LIMIT_BYTES:
        raise WireError(f"raw bytes beyond {RAW_LIMIT_BYTES}: {shown(line)}")
    return int(length)


def parse_line(line: bytes) -> JsonObject:
    """Return the JSON object of a line.

    :raises WireError: the line is not a JSON object
    """
    try:
        return parse_object(line, depth=MAX_DEPTH, values=MAX_VALUES)
    except UntrustedInputError as error:
        raise WireError(f"a line is refused, {error}: {shown(line)}") from error


def encode(document: Mapping[str, Any]) -> bytes:
    """Return the line of a command.

    :raises UserError: the line is longer than a host accepts
    """
    line = json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    if len(line) > LINE_LIMIT_BYTES:
        raise UserError(
            f"Command '{document.get('cmd')}' is {len(line):,} bytes long, but a host accepts {LINE_LIMIT_BYTES:,}. "
            "Put large data into files below model_dir instead of the configuration."
        )
    return line


def find_hello(received: bytes) -> tuple[Hello, int] | None:
    """Return the greeting and the position after it, or None if it is not complete yet.

    :raises WireError: the greeting is malformed, or too many bytes came before it
    """
    start = received.find(MAGIC + b"{")
    end = received.find(b"\n", start) if start >= 0 else -1
    if end >= 0:
        return Hello.parse(received[start + len(MAGIC) : end]), end + 1
    noise = len(received) if start < 0 else start
    if noise > NOISE_LIMIT_BYTES or len(received) > 2 * NOISE_LIMIT_BYTES:
        raise WireError(f"no greeting within {NOISE_LIMIT_BYTES} bytes: {shown(received)}")
    return None


def shown(data: bytes | bytearray) -> str:
    """Return the first 200 characters of received bytes, escaped for printing."""
    return plain(bytes(data[: 4 * _SHOWN]).decode("utf-8", "replace"), _SHOWN)


def plain(text: object, limit: int = 2000) -> str:
    """Return a text from a host with control characters escaped, cut to ``limit`` characters of input."""
    return escaped(str(text)[:limit])
