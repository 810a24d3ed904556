"""Schema of each command's answer: the fields that the rest of the package reads, with their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_dtrain.core.untrusted import is_count, is_number
from airflow_provider_dtrain.hosts.wire import WireError, is_span, shown

#: Maximum number of entries of a list or an object in an answer.
MOST_ENTRIES = 100_000

Fits = Callable[[Any], bool]


def check_answer(cmd: str, answer: Mapping[str, Any]) -> None:
    """Check that a successful answer has the fields of its command. Other fields may have any value.

    :raises WireError: a field is missing or of another type
    """
    for name, fits in _ANSWERS.get(cmd, {}).items():
        if not fits(answer.get(name)):
            raise WireError(f"an answer to '{cmd}' whose '{name}' is {shown(repr(answer.get(name)).encode())}")


def _maybe(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _list(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and len(value) <= MOST_ENTRIES and all(map(fits, value))


def _object(fits: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and len(value) <= MOST_ENTRIES and all(map(fits, value.values()))


def _fields(**known: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and all(fits(value.get(name)) for name, fits in known.items())


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 65_536


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _any(value: Any) -> bool:
    return True


def _port(value: Any) -> bool:
    return type(value) is int and 0 < value < 65536


def _rank(value: Any) -> bool:
    return type(value) is int and 0 <= value < 10**6


def _exit_code(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**31


_WORDS = _maybe(_text)
_COUNT = _maybe(is_count)
_PROCESS = _fields(device=_any, pid=_any, name=_any, user=_any, memory_bytes=is_number)
_RUN = _fields(
    state=_WORDS, reason=_WORDS, launch=_WORDS, unrenewed_s=_maybe(is_number), token=_COUNT,
    ranks=_maybe(_list(_fields(rank=_maybe(_rank), pid=_COUNT, exit_code=_maybe(_exit_code)))),
)  # fmt: skip
_TARGET = _fields(ok=_flag, address=_WORDS, port=_maybe(_port), source_address=_WORDS, interface=_WORDS, error=_WORDS)
_OFFER = _fields(address=_text, interface=_text, speed_mbps=_maybe(_exit_code), mtu=_COUNT)

#: Command -> field -> check of its value, which is None if the field is missing.
_ANSWERS: Mapping[str, Mapping[str, Fits]] = {
    "probe": {"boottime_s": _maybe(is_span), "stores": _maybe(_object(is_count)), "wall_s": _maybe(is_span)},
    "preflight": {
        "python": _WORDS, "executable": _WORDS, "modules": _object(_WORDS), "foreign": _maybe(_list(_PROCESS)),
        "problems": _maybe(_list(_text)),
    },
    "net_listen": {"port": _port, "addresses": _maybe(_list(_OFFER))},
    "net_connect": {"results": _list(_TARGET)},
    "have": {"missing": _list(_text)},
    "prepare": {"state": _WORDS, "port": _maybe(_port)},
    "fence": {"clear": _flag, "survivors": _maybe(_list(_any))},
    "match": {
        "matches": _object(_fields(rank=_rank, line=_text)), "unfinished": _list(is_count), "refused": _object(_text),
    },
    "status": {
        "runs": _maybe(_object(_RUN)), "stores": _maybe(_object(is_count)),
        "slots": _maybe(_object(_maybe(_fields(held_by=_WORDS)))),
    },
    "read": {"size": _COUNT, "offset": _COUNT},
    "collect": {"sizes": _maybe(_object(is_count)), "archives": _maybe(_object(is_count))},
    "remove_checkpoints": {"removed": _maybe(_list(_text)), "kept": _maybe(_object(_text))},
}  # fmt: skip
