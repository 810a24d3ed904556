"""Wire format of a follow channel: one greeting, then JSON lines, some followed by raw bytes.

A machine that runs the user's code writes everything that this module reads. The input is therefore
bounded in size and checked, and messages show it escaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard

from airflow_provider_dtrain.core.control_characters import escaped
from airflow_provider_dtrain.core.lifecycle.watchdog import RankReport
from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError, is_count, is_number, parse_object
from airflow_provider_dtrain.errors import HostError, UserError

PROTOCOL = 1
MAGIC = f"DTRAIN/{PROTOCOL} ".encode()
#: Maximum length of a line in either direction, and of the raw bytes after a line.
LINE_LIMIT_BYTES = 8 * 1024 * 1024
RAW_LIMIT_BYTES = 16 * 1024 * 1024
#: Maximum nesting depth and number of values of a line. Each `{}` of `{},{},...` takes 70 bytes as an object.
MAX_DEPTH, MAX_VALUES = 32, 1_000_000
#: Maximum characters of a text in a greeting, and maximum number of stores, of runs in a beat and of ranks in a report.
TEXT_LIMIT, STORES_LIMIT, RUNS_LIMIT, RANKS_LIMIT = 4096, 10_000, 20_000, 8192
#: Maximum number of bytes that a login script may print before the greeting.
NOISE_LIMIT_BYTES = 64 * 1024
_SHOWN = 200


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

    protocol: int
    machine_id: str
    boot_id: str
    #: Inode of the PID namespace: containers on one machine share the two identities above.
    pid_ns: int | str
    uid: int
    python: str
    executable: str
    state_dir: str
    #: The host's CLOCK_BOOTTIME when it wrote the line.
    boottime_s: float
    hostname: str
    #: The host's wall clock at that moment, None if the host did not send it.
    wall_s: float | None = None
    #: Distinguishes, together with the boot ID, the boots of containers; 0 if the host did not send it.
    pid1_start_time: int = 0
    #: Store ID -> highest token that the host has received from it.
    stores: Mapping[str, int] = field(default_factory=dict, compare=False)

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
        known = {one.name: document[one.name] for one in fields(cls) if one.name in document}
        for key, fits in _HELLO_FIELDS.items():
            if not fits(known.get(key)):
                raise WireError(f"greeting without a valid {key!r}: {shown(line)}")
        if known["protocol"] != PROTOCOL:
            raise WireError(f"protocol {known['protocol']} instead of {PROTOCOL}")
        stores = known.get("stores", {})
        if (
            not (known.get("wall_s") is None or is_span(known["wall_s"]))
            or not is_count(known.get("pid1_start_time", 0))
            or not isinstance(stores, dict)
            or len(stores) > STORES_LIMIT
            or not all(is_count(token) for token in stores.values())
        ):
            raise WireError(f"greeting with invalid details: {shown(line)}")
        return cls(**known)


def is_span(value: object) -> TypeGuard[float]:
    """Return whether a value is a plausible clock reading or duration in seconds."""
    return isinstance(value, int | float) and is_number(value) and 0 <= value < 1e12


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= TEXT_LIMIT


def is_texts(value: object, limit: int) -> TypeGuard[list[str]]:
    """Return whether a value is a list of at most ``limit`` texts of bounded length."""
    return isinstance(value, list) and len(value) <= limit and all(map(_is_text, value))


_HELLO_FIELDS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("machine_id", "boot_id", "python", "executable", "state_dir", "hostname"), _is_text),
    **dict.fromkeys(("protocol", "uid"), is_count),
    "pid_ns": lambda value: _is_text(value) or is_count(value),
    "boottime_s": is_span,
}


@dataclass(frozen=True, kw_only=True)
class Frame:
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
        run = document.get("run")
        stream = document.get("stream")
        counts = [document.get(key, 0) for key in ("offset", "epoch", "skip_bytes")]
        if not _is_text(run) or not _is_text(stream) or not all(map(is_count, counts)) or counts[1] >= 2**31:
            raise WireError(f"a frame with wrong fields: {shown(json.dumps(document).encode())}")
        return cls(
            t=document["t"],
            run=run,
            stream=stream,
            offset=counts[0],
            data=raw,
            epoch=counts[1],
            skip_bytes=counts[2],
            reason=plain(document.get("reason", "")),
        )


_RANK_FIELDS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("rank", "pid", "steps"), is_count),
    **dict.fromkeys(("state_s", "idle_s", "silent_s", "still_s"), is_span),
    **dict.fromkeys(("state", "phase", "what"), _is_text),
    "started": lambda value: isinstance(value, bool),
}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of the ranks of a run on one host at one moment."""

    run: str
    #: The host's CLOCK_BOOTTIME at that moment.
    boottime_s: float
    ranks: tuple[RankReport, ...]
    #: Seconds for which the run's supervisor has been stopped by a signal.
    supervisor_stopped_s: float = 0.0

    @classmethod
    def parse(cls, document: Mapping[str, Any], host: str) -> Progress:
        """Return the report.

        :raises WireError: a field is missing or of the wrong type
        """
        run = document.get("run")
        ranks = document.get("ranks")
        reading = document.get("boottime_s")
        stopped_s = document.get("supervisor_stopped_s", 0.0)
        if not _is_text(run) or not isinstance(ranks, list) or not is_span(reading) or not is_span(stopped_s):
            raise WireError(f"a progress report with wrong fields: {shown(json.dumps(document).encode())}")
        if len(ranks) > RANKS_LIMIT:
            raise WireError(f"a progress report of {len(ranks)} ranks, at most {RANKS_LIMIT} are accepted")
        found = tuple(_rank_report(rank, host) for rank in ranks)
        return cls(run=run, boottime_s=reading, ranks=found, supervisor_stopped_s=stopped_s)


def _rank_report(document: object, host: str) -> RankReport:
    """Return a host's report of one rank, without unknown fields."""
    known: dict[str, Any] = {}
    for name, value in document.items() if isinstance(document, dict) else ():
        fits = _RANK_FIELDS.get(name)
        if fits is not None and not fits(value):
            raise WireError(f"a progress report whose {name} is {shown(str(value).encode())}")
        if fits is not None:
            known[name] = plain(value, 60) if isinstance(value, str) else value
    if "rank" not in known:
        raise WireError("a progress report without a rank")
    return RankReport(host=host, **known)


class FrameReader:
    """Splits a byte stream into JSON objects, each with the raw bytes that belong to it."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._waiting: tuple[dict[str, Any], int] | None = None

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield every object that is now complete.

        :raises WireError: a line is too long, or is not a JSON object
        """
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
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


def parse_line(line: bytes) -> dict[str, Any]:
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
