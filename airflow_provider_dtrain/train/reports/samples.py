"""Raw measurements of one rank: one line per second, in a file of limited size."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.values import JsonObject

#: Largest size of one rank's samples, bytes.
LIMIT_BYTES = 32 << 20
#: Interval between two lines at the start, seconds.
INTERVAL_S = 1.0
#: Values of one name in one line. A loop with more batches per interval keeps every n-th value.
MOST_VALUES = 500


class SampleFile:
    """Writes lines of ``kind`` ``batches``, and halves the rate whenever half of the remaining space is used.

    A file thus has a line for every second of its first hours, for every second second of the next, and never reaches
    the limit. A line of ``kind`` ``interval`` marks each change of the rate. The values of a line are of consecutive
    batches.

    :param path: next to the rank's events
    :param interval_s: shortest time between two lines at the start, seconds
    """

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES, interval_s: float = INTERVAL_S) -> None:
        self._limit_bytes = limit_bytes
        self.interval_s = interval_s
        self._path = path
        self._base_s = interval_s
        self._not_before = 0.0
        self._writer = EventWriter(path)
        self._written = path.stat().st_size
        self._thin_at = limit_bytes // 2
        self._thin()

    def write(self, first: int, batches: int, values: Mapping[str, Sequence[float]], *, last: bool = False) -> None:
        """Append one line of integer microseconds per name, unless the previous line is too recent.

        A name that was measured more often than :data:`MOST_VALUES` keeps every n-th value, and ``every`` holds its n.

        :param first: number of the first batch, from 0
        :param values: name -> seconds, in the order of the measurements
        :param last: write the line even if the previous one is recent
        """
        now = time.monotonic()
        if now < self._not_before and not (last and self.interval_s == self._base_s):
            return
        # Callers come every second, a little earlier or later.
        self._not_before = now + self.interval_s - 0.5 * self._base_s
        every = {name: -(-len(found) // MOST_VALUES) for name, found in values.items() if len(found) > MOST_VALUES}
        arrays = {name: _microseconds(found[:: every.get(name, 1)]) for name, found in values.items() if found}
        fields: JsonObject = {"first": first, "batches": batches, "us": arrays}
        if every:
            fields["every"] = every
        self._append("batches", fields)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _append(self, kind: str, fields: Mapping[str, Any]) -> None:
        # Measurements must not fail the training: they are lost on a full disk.
        with contextlib.suppress(OSError):
            self._writer.write_all([(time.time(), kind, fields)])
            self._written = os.stat(self._path).st_size
        if self._written >= self._thin_at:
            self._thin()

    def _thin(self) -> None:
        """Halve the rate for each half of the remaining space that is used up."""
        before = self.interval_s
        while self._written >= self._thin_at:
            self.interval_s *= 2
            left = self._limit_bytes - self._thin_at
            if left < 4096:
                self.interval_s = math.inf
                self._thin_at = sys.maxsize
                break
            self._thin_at += left // 2
        if self.interval_s != before:
            shown = self.interval_s if math.isfinite(self.interval_s) else None
            self._append("interval", {"interval_s": shown})


def _microseconds(values: Sequence[float]) -> list[int]:
    return [int(value * 1e6 + 0.5) for value in values]
