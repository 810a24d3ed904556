"""Event files of TensorBoard: scalars as records with checksums. Needs no package.

Source: TensorFlow's event.proto, summary.proto and record_writer.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

#: Polynomial of CRC-32C, reflected.
_POLYNOMIAL: Final = 0x82F63B78
_MASK_DELTA: Final = 0xA282EAD8
#: Wire types of protocol buffers.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: First event of each file. With version 2, readers obey the start of a session.
_VERSION: Final = b"brain.Event:2"


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_TABLE: Final = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def version_event(at_s: float) -> bytes:
    """Return the record that a file begins with.

    :param at_s: Unix time
    """
    return _record(_event(at_s, 0, _field(3, _VERSION)))


def restart_event(at_s: float, step: int) -> bytes:
    """Return the record from which on readers drop what earlier records have of this and later steps."""
    return _record(_event(at_s, step, _field(7, _key(1, _VARINT) + _varint(1))))


def scalars_event(at_s: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return the record with the scalars of one step.

    :param values: tag -> value. A value beyond 32-bit floats becomes infinite
    """
    parts = (
        _field(1, _field(1, tag.encode("utf-8", "replace")) + _key(2, _FIXED32) + _float(value))
        for tag, value in values.items()
    )
    return _record(_event(at_s, step, _field(5, b"".join(parts))))


def scalars_of(group: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return tag -> value of the metrics that are numbers.

    :param group: ``training`` or ``validation``, the first part of the tags
    """
    return {
        f"{group}/{name}": _number(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _event(at_s: float, step: int, content: bytes) -> bytes:
    return _key(1, _FIXED64) + struct.pack("<d", at_s) + _key(2, _VARINT) + _varint(step) + content


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    parts: Iterable[int] = ()
    while value > 0x7F:
        parts = (*parts, value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))
