"""Chunks: the points of several series as compressed columns.

A chunk is the byte 3 and a zlib stream. The stream has a section per metric: its name, its length, its series with
device, rank and number of points, and five columns: times, counts, means, minima, maxima. A column has the values of
all series of the section, one series after the other. Times and counts are a first value and the differences of the
following ones, in the smallest integer type that holds them all. Means, minima and maxima are floats with 11
significant bits, so a value changes by at most 0.05 %, whatever the size of its neighbours, and integers up to 2,048
are exact. Of all types, bytes of equal weight are next to each other. No column needs a loop in Python to be read.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import sub

from airflow_provider_dtrain.core.series.points import Key, Points

#: Largest absolute value of a point.
LARGEST = 1e30
_VERSION = b"\x03"
#: Of the 23 bits of the mantissa of a 32-bit float, the last 13 are dropped, which changes a value by at most 2**-11 of
#: it: half of their weight, and their mask.
_HALF, _KEPT = 1 << 12, -1 << 13
#: Bytes of a float that are stored, the most significant one first, by their place in the machine's order.
_PLANES = (3, 2, 1) if sys.byteorder == "little" else (0, 1, 2)
#: Column types: a constant difference, or differences of one of the types below. Floats, or the means again.
_CONSTANT, _FLOATS, _SAME = b"c", b"f", b"="
#: Times: those of the first series are those of all.
_SHARED, _OWN = b"s", b"o"
_INTEGERS = ("b", "h", "i", "q")
_SIZES = {name: array(name).itemsize for name in _INTEGERS}
_ENDS = {name: 1 << (8 * size - 1) for name, size in _SIZES.items()}
#: Most bytes of an unpacked chunk. One of the largest gang that a host has is far smaller.
_UNPACKED_MOST = 256 << 20
#: Most points of a section: a window of tier 1 with 1,000 ranks has 600,000.
_POINTS_MOST = 16 << 20


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
        return dict(_read(_PartReader(body), metric))
    except (zlib.error, struct.error, IndexError, UnicodeDecodeError, OverflowError, KeyError, ValueError) as error:
        raise ChunkError(f"a damaged chunk: {error}") from None


# -- writing --------------------------------------------------------------------------------------------
def _section(metric: str, series: Sequence[tuple[Key, Points]]) -> bytes:
    heads = [_head(key, len(points)) for key, points in series]
    columns = [points for _, points in series]
    times = columns[0].at
    is_shared = all(points.at == times for points in columns)
    mean = _floats([points.mean for points in columns])
    body = [
        *heads,
        _SHARED + _integers(times) if is_shared else _OWN + _integers(_joined([points.at for points in columns])),
        _integers(_joined([points.count for points in columns])),
        mean,
    ]
    for values in ([points.minimum for points in columns], [points.maximum for points in columns]):
        floats = _floats(values)
        body.append(_SAME if floats == mean else floats)
    data = b"".join(body)
    name = metric.encode()
    return struct.pack("<B", len(name)) + name + struct.pack("<IH", len(data), len(series)) + data


def _head(key: Key, count: int) -> bytes:
    device = key.device.encode()
    return struct.pack("<H", len(device)) + device + struct.pack("<iI", -1 if key.rank is None else key.rank, count)


def _joined(columns: Sequence[list[int]]) -> list[int]:
    return list(chain.from_iterable(columns)) if len(columns) > 1 else columns[0]


def _floats(columns: Sequence[list[float]]) -> bytes:
    """Return a column of floats, rounded to 11 significant bits."""
    values = array("d", chain.from_iterable(columns))
    total = sum(values)
    if len(values) and not (total - total == 0 and min(values) >= -LARGEST and max(values) <= LARGEST):
        raise ValueError(f"values of a series must be finite and at most {LARGEST:g}")
    numbers = array("i")
    numbers.frombytes(array("f", values).tobytes())
    data = array("i", [(word + _HALF) & _KEPT for word in numbers]).tobytes()
    return _FLOATS + b"".join(data[byte::4] for byte in _PLANES)


def _integers(values: Sequence[int]) -> bytes:
    if not values:
        return _CONSTANT + struct.pack("<qq", 0, 0)
    steps = list(map(sub, values[1:], values))
    low, high = (min(steps), max(steps)) if steps else (0, 0)
    if low == high:
        return _CONSTANT + struct.pack("<qq", values[0], low)
    kind = next(name for name in _INTEGERS if -_ENDS[name] <= low and high < _ENDS[name])
    packed = array(kind, steps)
    if sys.byteorder == "big":
        packed.byteswap()
    data = packed.tobytes()
    size = _SIZES[kind]
    planes = data if size == 1 else b"".join(data[byte::size] for byte in range(size))
    return kind.encode() + struct.pack("<q", values[0]) + planes


# -- reading --------------------------------------------------------------------------------------------
class _PartReader:
    """Reader of the parts of an unpacked chunk, in their order."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, length: int) -> bytes:
        start = self.position
        self.position = start + length
        if self.position > len(self.data):
            raise ChunkError("a chunk that ends too early")
        return self.data[start : self.position]

    def unpack(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def floats(self, count: int) -> list[float] | None:
        """Return the next column of floats, None for one that has the values of the means."""
        kind = self.take(1)
        if kind == _SAME:
            return None
        if kind != _FLOATS:
            raise ChunkError(f"a column of an unknown type {kind!r}")
        data = bytearray(4 * count)
        for byte in _PLANES:
            data[byte::4] = self.take(count)
        values = array("f")
        values.frombytes(bytes(data))
        return values.tolist()

    def integers(self, count: int) -> list[int]:
        kind = self.take(1)
        if kind == _CONSTANT:
            first, step = self.unpack("<qq")
            return list(range(first, first + step * count, step)) if step else [first] * count
        (first,) = self.unpack("<q")
        name = kind.decode("ascii")
        size = _SIZES[name]
        planes = self.take(size * (count - 1))
        data = bytearray(planes)
        if size > 1:
            for byte in range(size):
                data[byte::size] = planes[byte * (count - 1) : (byte + 1) * (count - 1)]
        steps = array(name, bytes(data))
        if sys.byteorder == "big":
            steps.byteswap()
        return list(accumulate(steps, initial=first))


def _read(reader: _PartReader, metric: str | None) -> Iterator[tuple[Key, Points]]:
    while reader.position < len(reader.data):
        name = reader.take(reader.unpack("<B")[0]).decode()
        length, count = reader.unpack("<IH")
        if metric is not None and metric != name:
            reader.take(length)
            continue
        yield from _read_section(reader, name, count)


def _read_section(reader: _PartReader, metric: str, count: int) -> Iterator[tuple[Key, Points]]:
    heads = [_read_head(reader, metric) for _ in range(count)]
    total = sum(length for _, length in heads)
    if total > _POINTS_MOST:
        raise ChunkError(f"a chunk with {total:,} points of one metric")
    is_shared = reader.take(1) == _SHARED
    times = reader.integers(heads[0][1] if is_shared else total)
    counts, mean = reader.integers(total), reader.floats(total)
    if mean is None:
        raise ChunkError("a chunk whose means refer to themselves")
    low, high = (mean if column is None else column for column in (reader.floats(total), reader.floats(total)))
    start = 0
    for key, length in heads:
        end = start + length
        at = list(times) if is_shared else times[start:end]
        means = mean[start:end]
        extremes = (means if column is mean else column[start:end] for column in (low, high))
        yield key, Points(at, counts[start:end], means, *extremes)
        start = end


def _read_head(reader: _PartReader, metric: str) -> tuple[Key, int]:
    device = reader.take(reader.unpack("<H")[0]).decode()
    rank, count = reader.unpack("<iI")
    return Key(metric, device, None if rank < 0 else rank), count
