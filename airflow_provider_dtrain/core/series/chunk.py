"""Chunks: the points of several series as compressed columns.

A chunk is the byte 1 and a zlib stream. The stream has a section per metric: its name, its length, its series. A series
has its device, its rank, the number of its points, and five columns: times, counts, means, minima, maxima. A column of
integers is its first value and the differences of the following ones, in the smallest integer type that holds them all,
with the bytes of equal weight next to each other. Means, minima and maxima are stored with 11 significant bits, so a
value changes by at most 0.05 %, whatever the size of its neighbours. Integers up to 2,048 are exact.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import isfinite

from airflow_provider_dtrain.core.series.points import Key, Points

#: Largest relative change of a value by storage.
RELATIVE_ERROR = 2.0**-11
#: Largest absolute value of a point.
LARGEST = 1e30
_VERSION = b"\x01"
#: Bits of a 32-bit float that are not stored: the last 13 of 23 bits of the mantissa.
_DROPPED = 13
#: Column types: the difference is constant, or is of one of these types of :mod:`array`; the column equals the means.
_CONSTANT, _SAME = b"c", b"="
_INTEGERS = ("b", "h", "i", "q")
_SIZES = {name: array(name).itemsize for name in _INTEGERS}
_ENDS = {name: 1 << (8 * size - 1) for name, size in _SIZES.items()}
#: Most bytes of an unpacked chunk. One of the largest gang that a host has is far smaller.
_UNPACKED_MOST = 256 << 20
#: Most points of a series in a chunk, far more than the seconds of the longest window.
_POINTS_MOST = 1 << 20


class ChunkError(ValueError):
    """The bytes are not a chunk."""


def encode(series: Mapping[Key, Points]) -> bytes:
    """Return the chunk of some series.

    :raises ValueError: a value is not finite, or beyond :data:`LARGEST`
    """
    metrics: dict[str, list[tuple[Key, Points]]] = {}
    for key, points in series.items():
        metrics.setdefault(key.metric, []).append((key, points))
    sections = [_section(metric, found) for metric, found in metrics.items()]
    return _VERSION + zlib.compress(b"".join(sections), 6)


def decode(chunk: bytes, metric: str | None = None) -> dict[Key, Points]:
    """Return the series of a chunk.

    :param metric: only the series of this metric, which takes less time; None = all
    :raises ChunkError: the bytes are not a chunk
    """
    if chunk[:1] != _VERSION:
        raise ChunkError(f"a chunk of an unknown version {chunk[:1]!r}")
    try:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(chunk[1:], _UNPACKED_MOST)
        if not unpacker.eof:
            raise ChunkError("a chunk that is cut or too long")
        return dict(_read(_Reader(body), metric))
    except (zlib.error, struct.error, IndexError, UnicodeDecodeError, OverflowError, KeyError) as error:
        raise ChunkError(f"a damaged chunk: {error}") from None


def _section(metric: str, series: Sequence[tuple[Key, Points]]) -> bytes:
    body = b"".join(_one(key, points) for key, points in series)
    name = metric.encode()
    return struct.pack("<B", len(name)) + name + struct.pack("<IH", len(body), len(series)) + body


def _one(key: Key, points: Points) -> bytes:
    device = key.device.encode()
    mean = _codes(points.mean)
    columns = [_integers(points.at), _integers(points.count), _integers(mean)]
    for values in (points.minimum, points.maximum):
        codes = mean if values is points.mean else _codes(values)
        columns.append(_SAME if codes and codes == mean else _integers(codes))
    head = struct.pack("<H", len(device)) + device + struct.pack("<iI", -1 if key.rank is None else key.rank, len(mean))
    return head + b"".join(columns)


def _codes(values: Sequence[float]) -> list[int]:
    """Return floats as integers of the same order of sign and size, rounded to 11 significant bits."""
    if not all(isfinite(value) and abs(value) <= LARGEST for value in values):
        raise ValueError(f"values of a series must be finite and at most {LARGEST:g}")
    bits = array("i")
    bits.frombytes(array("f", values).tobytes())
    half = 1 << (_DROPPED - 1)
    return [(word + half) >> _DROPPED for word in bits]


def _values(codes: Sequence[int]) -> list[float]:
    bits = array("i", [code << _DROPPED for code in codes])
    values = array("f")
    values.frombytes(bits.tobytes())
    return values.tolist()


def _integers(values: Sequence[int]) -> bytes:
    if not values:
        return b""
    steps = [after - before for before, after in pairwise(values)]
    low, high = min(steps, default=0), max(steps, default=0)
    if low == high:
        return _CONSTANT + struct.pack("<qq", values[0], low)
    kind = next(name for name in _INTEGERS if -_ENDS[name] <= low and high < _ENDS[name])
    packed = array(kind, steps)
    if sys.byteorder == "big":
        packed.byteswap()
    data = packed.tobytes()
    size = _SIZES[kind]
    return kind.encode() + struct.pack("<q", values[0]) + b"".join(data[byte::size] for byte in range(size))


class _Reader:
    """Reader of the parts of an unpacked chunk, in their order."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        start = self.position
        self.position = start + length
        if self.position > len(self.data):
            raise ChunkError("a chunk that ends too early")
        return self.data[start : self.position]

    def unpack(self, form: str) -> tuple[int, ...]:
        """Return the next integers, of a format of :mod:`struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def integers(self, count: int) -> list[int] | None:
        """Return the next column, None for one that equals the means."""
        if not count:
            return []
        kind = self.take(1)
        if kind == _SAME:
            return None
        if kind == _CONSTANT:
            first, step = self.unpack("<qq")
            return list(range(first, first + step * count, step)) if step else [first] * count
        (first,) = self.unpack("<q")
        name = kind.decode("ascii")
        size = _SIZES[name]
        planes = self.take(size * (count - 1))
        data = bytearray(len(planes))
        for byte in range(size):
            data[byte::size] = planes[byte * (count - 1) : (byte + 1) * (count - 1)]
        steps = array(name, bytes(data))
        if sys.byteorder == "big":
            steps.byteswap()
        return list(accumulate(steps, initial=first))


def _read(reader: _Reader, metric: str | None) -> Iterator[tuple[Key, Points]]:
    while reader.position < len(reader.data):
        name = reader.take(reader.unpack("<B")[0]).decode()
        length, count = reader.unpack("<IH")
        if metric is not None and metric != name:
            reader.take(length)
            continue
        for _ in range(count):
            yield _read_one(reader, name)


def _read_one(reader: _Reader, metric: str) -> tuple[Key, Points]:
    device = reader.take(reader.unpack("<H")[0]).decode()
    rank, count = reader.unpack("<iI")
    if count > _POINTS_MOST:
        raise ChunkError(f"a chunk with a series of {count:,} points")
    at, counts, mean = reader.integers(count), reader.integers(count), reader.integers(count)
    if at is None or counts is None or mean is None:
        raise ChunkError("a chunk with a reference where a column belongs")
    means = _values(mean)
    extremes = [
        means if codes is None else _values(codes) for codes in (reader.integers(count), reader.integers(count))
    ]
    return Key(metric, device, None if rank < 0 else rank), Points(at, counts, means, *extremes)
