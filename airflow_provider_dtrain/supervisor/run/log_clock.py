"""Times at which the log of a rank had grown, for readers that want the time of a line."""

from __future__ import annotations

import contextlib
import os
import struct
import time

from ..limits import CLOCK_RECORDS

#: Size of the log in bytes, and the time in seconds since 1970.
RECORD = struct.Struct("<Qd")


class LogClock:
    """The only writer of the clock file of a rank.

    The file is bounded: once it is full, every second record is dropped, and further ones are written half as often.

    :param folder: folder of the rank
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.path = os.path.join(folder, "clock")
        self.size = 0
        self.period_s = 0.0
        self.not_before = 0.0

    def note(self, *, is_last: bool = False) -> None:
        """Append a record if the log has grown. Without room on the disk it is dropped.

        :param is_last: no check follows
        """
        now = time.time()
        if now < self.not_before and not is_last:
            return
        with contextlib.suppress(OSError):
            size = os.lstat(os.path.join(self.folder, "log")).st_size
            if size <= self.size:
                return
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(self.path, flags, 0o600)
            try:
                if os.fstat(fd).st_size >= CLOCK_RECORDS * RECORD.size:
                    self._thin(fd)
                os.write(fd, RECORD.pack(size, now))
            finally:
                os.close(fd)
            self.size = size
            self.not_before = now + self.period_s

    def _thin(self, fd: int) -> None:
        data = os.pread(fd, CLOCK_RECORDS * RECORD.size, 0)
        kept = b"".join(data[start : start + RECORD.size] for start in range(RECORD.size, len(data), 2 * RECORD.size))
        os.ftruncate(fd, 0)
        os.write(fd, kept)
        self.period_s = max(1.0, 2 * self.period_s)
