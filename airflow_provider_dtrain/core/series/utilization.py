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
_HEAD = struct.Struct("<QB")


class Utilization:
    """Mean utilization of the last :data:`MINUTES` minutes, of the host and of each GPU.

    :param last: number of the latest minute since 1970; 0 without data
    """

    def __init__(self, last: int = 0) -> None:
        self.last = last
        #: (metric, device) -> a byte per minute, oldest first, and the number of samples in the latest minute.
        self._rows: dict[tuple[str, str], tuple[bytearray, int]] = {}

    @classmethod
    def parse(cls, data: bytes | None) -> Utilization:
        """Return the utilization that :meth:`pack` wrote, an empty one for None or damaged bytes."""
        if not data:
            return cls()
        try:
            last, count = _HEAD.unpack_from(data)
            found = cls(last)
            position = _HEAD.size
            for _ in range(count):
                metric, samples, length = struct.unpack_from("<BHB", data, position)
                position += 4
                device = data[position : position + length].decode()
                position += length
                row = bytearray(data[position : position + MINUTES])
                position += MINUTES
                if len(row) < MINUTES:
                    return cls()
                found._rows[_METRICS[metric], device] = row, samples
        except (struct.error, UnicodeDecodeError, IndexError):
            return cls()
        return found

    def pack(self) -> bytes:
        """Return the utilization as bytes: 120 and the device's UUID per series."""
        parts = [_HEAD.pack(self.last, min(len(self._rows), 255))]
        for (metric, device), (row, samples) in list(self._rows.items())[:255]:
            label = device.encode()[:255]
            parts.append(struct.pack("<BHB", _METRICS.index(metric), min(samples, 65_535), len(label)) + label + row)
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
        return {key: [None if byte == _NONE else byte / 2 for byte in row] for key, (row, _) in self._rows.items()}

    def _advance(self, last: int) -> None:
        """Move on to a later minute."""
        by = last - self.last
        if by <= 0:
            return
        self.last = last
        for key, (row, _) in list(self._rows.items()):
            moved = row[by:] + bytes([_NONE]) * min(by, MINUTES)
            if all(byte == _NONE for byte in moved):
                # A GPU that another attempt uses now.
                del self._rows[key]
            else:
                self._rows[key] = moved, 0

    def _put(self, key: Key, minute: int, count: int, mean: float) -> None:
        index = MINUTES - 1 - (self.last - minute)
        if index < 0:
            return
        row, samples = self._rows.setdefault((key.metric, key.device), (bytearray([_NONE]) * MINUTES, 0))
        # The number of samples is known for the latest minute only. Late points of an earlier one count like its mean.
        known = 0 if row[index] == _NONE else samples if index == MINUTES - 1 else count
        old = row[index] / 2 if known else 0.0
        row[index] = round(2 * min(100.0, max(0.0, (old * known + mean * count) / (known + count))))
        if index == MINUTES - 1:
            self._rows[key.metric, key.device] = row, known + count
