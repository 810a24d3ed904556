"""The lines of an events file: ``<crc32, 8 hex digits> <compact JSON>``."""

from __future__ import annotations

import json
import zlib
from typing import Any

MAX_DEPTH = 16


class CorruptEventError(ValueError):
    """A line of an events file is not what its writer wrote."""


def parse_events(data: bytes) -> list[dict[str, Any]]:
    """Return the events of whole lines, in order.

    :param data: bytes that end with a newline
    :raises CorruptEventError: a checksum does not fit, or a line is not an object with ``seq``,
        ``at`` and ``kind``; says which line
    """
    if data and not data.endswith(b"\n"):
        raise CorruptEventError("an events frame ends in the middle of a line")
    return [_parse(line, number) for number, line in enumerate(data.splitlines(), start=1)]


def _parse(line: bytes, number: int) -> dict[str, Any]:
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        raise CorruptEventError(f"line {number}: checksum {checksum[:8]!r} does not fit its {len(body)} bytes")
    try:
        event = json.loads(body)
    except ValueError as error:
        raise CorruptEventError(f"line {number}: {error}") from None
    fits = (
        isinstance(event, dict)
        and isinstance(event.get("seq"), int)
        and isinstance(event.get("at"), int | float)
        and isinstance(event.get("kind"), str)
    )
    if not fits or _depth(event) > MAX_DEPTH:
        raise CorruptEventError(f"line {number}: not an event with seq, at and kind")
    found: dict[str, Any] = event
    return found


def _depth(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((_depth(child) for child in children), default=0)
