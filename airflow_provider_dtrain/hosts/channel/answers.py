"""Schema of each command's answer: the fields that the rest of the package reads, with their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_dtrain.core.untrusted_json import is_count, is_number
from airflow_provider_dtrain.errors import HostProtocolError
from airflow_provider_dtrain.hosts.wire import WireError, is_span, shown

#: Maximum number of entries of a list or an object in an answer.
MOST_ENTRIES = 100_000

Fits = Callable[[Any], bool]
_MISSING = object()


def check_answer(cmd: str, answer: Mapping[str, Any]) -> None:
    """Check that a successful answer has the fields of its command. Other fields may have any value.

    :raises WireError: a field is missing or of another type
    """
    for name, fits in _ANSWERS.get(cmd, {}).items():
        if not fits(value := answer.get(name, _MISSING)):
            words = "missing" if value is _MISSING else shown(repr(value).encode())
            raise WireError(f"an answer to '{cmd}' whose '{name}' is {words}")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Part of a file of a run."""

    #: Of the first byte. It is beyond the requested one if ``log_limit`` freed the bytes between them.
    offset: int
    data: bytes
    #: Bytes of the whole file.
    size: int


def piece_of(host: str, answer: Mapping[str, Any], *, offset: int, length: int) -> Piece:
    """Return the part of a file in an answer to ``read``.

    :param offset: first byte that was requested, negative: counted from the end
    :param length: most bytes that were requested
    :raises HostProtocolError: it is not the requested part
    """
    piece = Piece(offset=answer["offset"], data=answer["data"], size=answer["size"])
    first = max(0, piece.size + offset) if offset < 0 else offset
    if not first <= piece.offset <= max(first, piece.size) or len(piece.data) > length:
        raise HostProtocolError(
            host,
            f"Host '{host}' broke the protocol: it sent {len(piece.data)} bytes from {piece.offset} on of a file of "
            f"{piece.size}, instead of at most {length} from {offset} on.",
        )
    return piece


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Next bytes of a file of measurements."""

    stream: str
    #: Of the first byte. It is beyond the requested one if the host has dropped the bytes between them.
    offset: int
    data: bytes
    #: Bytes that the file ever had.
    end: int


def measurements_of(
    host: str, answer: Mapping[str, Any], *, streams: Mapping[str, int], most_bytes: int
) -> list[Measurements]:
    """Return the parts of files in an answer to ``telemetry``.

    :param streams: stream -> first byte that was requested
    :param most_bytes: most bytes that were requested
    :raises HostProtocolError: they are not the requested parts
    """
    found = []
    position = 0
    data: bytes = answer.get("data", b"")
    for part in answer["parts"]:
        end = position + part["bytes"]
        name, offset = part["stream"], part["offset"]
        piece = Measurements(stream=name, offset=offset, data=data[position:end], end=part["end"])
        position = end
        found.append(piece)
    names = [piece.stream for piece in found]
    is_asked = all(piece.stream in streams and piece.offset >= streams[piece.stream] for piece in found)
    if not is_asked or len(set(names)) < len(names) or position != len(data) or len(data) > most_bytes:
        raise HostProtocolError(
            host,
            f"Host '{host}' broke the protocol: it sent {len(data)} bytes of measurements that were not requested.",
        )
    return found


def _maybe(fits: Fits) -> Fits:
    return lambda value: value is None or value is _MISSING or fits(value)


def _nullable(fits: Fits) -> Fits:
    """Return a check of a field that may be null, but not missing: it is read by its name."""
    return lambda value: value is None or fits(value)


def _list(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and len(value) <= MOST_ENTRIES and all(map(fits, value))


def _object(fits: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and len(value) <= MOST_ENTRIES and all(map(fits, value.values()))


def _fields(**known: Fits) -> Fits:
    def fit(value: Any) -> bool:
        return isinstance(value, dict) and all(fits(value.get(name, _MISSING)) for name, fits in known.items())

    return fit


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 65_536


def _output(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 1 << 20


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _any(value: Any) -> bool:
    return value is not _MISSING


def _port(value: Any) -> bool:
    return type(value) is int and 0 < value < 65536


def _rank(value: Any) -> bool:
    return type(value) is int and 0 <= value < 10**6


def _exit_code(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**31


_WORDS = _maybe(_text)
_COUNT = _maybe(is_count)
_SHARED = _fields(writable=_flag, self=_text, seen=_list(_text))
_PROCESS = _fields(device=_any, pid=_any, name=_any, user=_any, memory_bytes=is_number)
_RUN = _fields(
    state=_WORDS,
    reason=_WORDS,
    launch=_WORDS,
    unrenewed_s=_maybe(is_number),
    token=_COUNT,
    ranks=_maybe(_list(_fields(rank=_maybe(_rank), pid=_COUNT, exit_code=_maybe(_exit_code)))),
)
_TARGET = _fields(ok=_flag, address=_text, port=_port, source_address=_WORDS, interface=_WORDS, error=_WORDS)
_OFFER = _fields(address=_text, interface=_text, speed_mbps=_maybe(_exit_code), mtu=_COUNT)

#: Command -> field -> check of its value. Fields without ``_maybe`` must be there.
_ANSWERS: Mapping[str, Mapping[str, Fits]] = {
    "clock": {"boottime_s": is_span, "wall_s": is_span},
    "probe": {
        "boottime_s": is_span, "stores": _maybe(_object(is_count)), "problems": _maybe(_list(_text)),
        "doubts": _maybe(_list(_text)),
    },
    "preflight": {
        "python": _nullable(_text), "executable": _nullable(_text), "modules": _object(_WORDS),
        "foreign": _list(_PROCESS), "problems": _list(_text), "shared": _object(_SHARED),
        "mounts": _list(_text),
    },
    "net_listen": {"port": _port, "addresses": _list(_OFFER)},
    "net_connect": {"results": _list(_TARGET)},
    "have": {"missing": _list(_text)},
    "prepare": {"state": _text, "port": _nullable(_port)},
    "fence": {"clear": _flag, "survivors": _maybe(_list(_any)), "foreign": _maybe(_list(_fields(slot=_rank)))},
    "match": {
        "matches": _object(_fields(rank=_rank, line=_text)), "unfinished": _list(is_count), "refused": _object(_text),
    },
    "status": {
        "runs": _maybe(_object(_RUN)), "stores": _maybe(_object(is_count)),
        "slots": _maybe(_object(_maybe(_fields(held_by=_WORDS)))),
    },
    "read": {"size": is_count, "offset": is_count, "bytes": is_count},
    "telemetry": {
        "parts": _list(_fields(stream=_text, offset=is_count, bytes=is_count, end=is_count)), "bytes": is_count,
    },
    "collect": {"sizes": _maybe(_object(is_count)), "archives": _maybe(_object(is_count))},
    "stacks": {"ranks": _list(_fields(rank=_rank, pid=is_count, state=_text, text=_text, problem=_text))},
    "exec": {
        "exit_code": _nullable(_exit_code), "timed_out": _flag, "output": _output, "size_bytes": is_count,
        "killed": is_count,
    },
    "remove_checkpoints": {"removed": _maybe(_list(_text)), "kept": _maybe(_object(_text))},
}  # fmt: skip
