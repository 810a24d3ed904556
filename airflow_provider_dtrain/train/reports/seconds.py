"""Timings of one rank per second, in two files of limited size that the supervisor sends to the control side."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from airflow_provider_dtrain.train.reports.events import encode_event

#: Size of one of the two files, bytes. A day of training takes about twice as much.
LIMIT_BYTES = 16 << 20
#: Ending of the file before the current one.
BEFORE = ".1"
#: Bytes in which the first line of a file ends.
_FIRST_LINE = 256


class Sums(NamedTuple):
    """Durations of one name within an interval."""

    #: How often it was measured.
    times: int
    #: Seconds.
    total: float
    shortest: float
    longest: float

    def joined(self, other: Sums) -> Sums:
        """Return the sums of both intervals together."""
        times, total, shortest, longest = other
        return Sums(self.times + times, self.total + total, min(self.shortest, shortest), max(self.longest, longest))


class SecondsFile:
    """Writes lines of ``kind`` ``timings`` with count, total, shortest and longest duration per name.

    A full file replaces the one before it, and a new one begins. Its first line has ``kind`` ``segment``, and in
    ``base`` the number of its first byte since the first file, so that a reader can resume.

    :param path: next to the rank's events
    """

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._seq = 0
        self._fd = -1
        self._open()
        self._base = _base_of(self._fd)
        if not self._size:
            self._append(_first_line(0))

    def write(self, first: int, batches: int, sums: Mapping[str, Sums]) -> None:
        """Append one line. It is lost on a full disk: measurements must not fail the training.

        :param first: number of the first batch, from 0
        """
        durations = {name: [one.times, *map(_microseconds, one[1:])] for name, one in sums.items()}
        boot = round(time.clock_gettime(time.CLOCK_BOOTTIME), 3) if hasattr(time, "CLOCK_BOOTTIME") else None
        fields = {"boot": boot, "first": first, "batches": batches, "us": durations}
        line = encode_event(self._seq + 1, time.time(), "timings", fields)
        with contextlib.suppress(OSError):
            if self._size + len(line) > self._limit_bytes:
                self._rotate()
            self._append(line)
            self._seq += 1

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _append(self, line: bytes) -> None:
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)

    def _rotate(self) -> None:
        self._base += self._size
        os.close(self._fd)
        self._fd = -1
        os.replace(self._path, f"{self._path}{BEFORE}")
        self._open()
        self._append(_first_line(self._base))


def _first_line(base: int) -> bytes:
    return encode_event(0, time.time(), "segment", {"base": base})


def _base_of(fd: int) -> int:
    """Return the number of the first byte of a file that an earlier process of this rank has begun."""
    _, _, body = os.pread(fd, _FIRST_LINE, 0).partition(b"\n")[0].partition(b" ")
    with contextlib.suppress(ValueError, AttributeError):
        return int(json.loads(body).get("base") or 0)
    return 0


def _microseconds(seconds: float) -> int:
    return int(seconds * 1e6 + 0.5)
