"""Utilization of a host and its GPUs per minute, in a few bytes, so that a page of 1,000 hosts reads one row each."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from airflow_provider_dtrain.core.series.points import Key, Points

#: Minutes that are kept.
MINUTES = 120
MINUTE_S = 60
#: Byte of a minute without a sample. Other bytes are half percents.
_NONE = 255
_METRICS = ("cpu_util", "gpu_util")
#: Latest minute, version of the format, number of series.
_HEAD = struct.Struct("<IIB")
#: Head of a series: metric, samples in the latest minute, their mean, length of the label. Without the mean, a minute
#: of many commits is rounded at each of them, and small changes are lost.
_ITEM = struct.Struct("<BHfB")
_VERSION = 1


class Utilization:
    """Mean utilization of the last :data:`MINUTES` minutes, of the host and of each GPU.

    :param last: number of the latest minute since 1970; 0 without data
    """

    def __init__(self, last: int = 0) -> None:
        self.last = last
        #: (metric, device) -> a byte per minute, oldest first, and number and mean of the samples in the latest minute.
        self._rows: dict[tuple[str, str], tuple[bytearray, int, float]] = {}

    @classmethod
    def parse(cls, data: bytes | None) -> Utilization:
        """Return the utilization that :meth:`pack` wrote, an empty one for None, damaged bytes or another version."""
        if not data:
            return cls()
        try:
            last, version, count = _HEAD.unpack_from(data)
            if version != _VERSION:
                return cls()
            found = cls(last)
            position = _HEAD.size
            for _ in range(count):
                metric, samples, mean, length = _ITEM.unpack_from(data, position)
                position += _ITEM.size
                device = data[position : position + length].decode()
                position += length
                row = bytearray(data[position : position + MINUTES])
                position += MINUTES
                if len(row) < MINUTES:
                    return cls()
                found._rows[_METRICS[metric], device] = row, samples, mean
        except (struct.error, UnicodeDecodeError, LookupError):
            return cls()
        return found

    def pack(self) -> bytes:
        """Return the utilization as bytes: 128 and the device's UUID per series."""
        parts = [_HEAD.pack(min(self.last, 2**32 - 1), _VERSION, min(len(self._rows), 255))]
        for (metric, device), (row, samples, mean) in list(self._rows.items())[:255]:
            label = device.encode()[:255]
            head = _ITEM.pack(_METRICS.index(metric), min(samples, 65_535), mean, len(label))
            parts.append(head + label + row)
        return b"".join(parts)

    def take(self, series: Mapping[Key, Points]) -> None:
        """Add the points of both utilization metrics. Points before the kept minutes are dropped."""
        wanted = {key: points for key, points in series.items() if key.metric in _METRICS and points.at}
        if not wanted:
            return
        self._advance(max(points.at[-1] // MINUTE_S for points in wanted.values()))
        for key, points in wanted.items():
            by_minute = points.reduced(MINUTE_S)
            for at, count, mean in zip(by_minute.at, by_minute.count, by_minute.mean, strict=True):
                self._put(key, at // MINUTE_S, count, mean)

    def rows(self) -> dict[tuple[str, str], list[float | None]]:
        """Return (metric, device) -> percent per minute, oldest first, up to minute :attr:`last`."""
        return {key: [None if byte == _NONE else byte / 2 for byte in row] for key, (row, *_) in self._rows.items()}

    def _advance(self, last: int) -> None:
        """Move on to a later minute."""
        by = last - self.last
        if by <= 0:
            return
        self.last = last
        for key, (row, *_) in list(self._rows.items()):
            moved = row[by:] + bytes([_NONE]) * min(by, MINUTES)
            if all(byte == _NONE for byte in moved):
                # A GPU that another attempt uses now.
                del self._rows[key]
            else:
                self._rows[key] = moved, 0, 0.0

    def _put(self, key: Key, minute: int, count: int, mean: float) -> None:
        index = MINUTES - 1 - (self.last - minute)
        if index < 0:
            return
        new = bytearray([_NONE]) * MINUTES, 0, 0.0
        row, samples, latest = self._rows.setdefault((key.metric, key.device), new)
        is_latest = index == MINUTES - 1
        # The number of samples is known for the latest minute only. Late points of an earlier one count like its mean.
        known = 0 if row[index] == _NONE else samples if is_latest else count
        old = latest if is_latest else row[index] / 2
        joined = min(100.0, max(0.0, (old * known + mean * count) / (known + count)))
        row[index] = round(2 * joined)
        if is_latest:
            self._rows[key.metric, key.device] = row, known + count, joined
