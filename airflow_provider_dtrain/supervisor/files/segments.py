"""Files of measurements: two segments of limited size, read by the number of the byte since the first one.

The first line of a segment has ``kind`` ``segment``, and in ``base`` the number of its first byte. When a segment is
full, it replaces the one before it, and a new one begins. A file without such a line begins at byte 0: versions before
this one wrote one file that got sparser as it grew.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping

from ..file_access import write_all
from ..names import Json
from .events import decode_event, encode_event
from .layout import RunFolder

#: Ending of the segment before the current one.
BEFORE = ".1"
#: Bytes in which the first line of a segment ends.
_FIRST_LINE = 256


class SegmentWriter:
    """The only writer of a file of measurements.

    :param limit: size of a segment, bytes
    """

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.seq = 0
        self._open()
        self.size = os.fstat(self.fd).st_size
        if not self.size:
            self._append(_first_line(0))

    def write(self, kind: str, fields: Json) -> None:
        """Append one line. On a full disk it is dropped: measurements must not take the space of anything else."""
        at = {"at": round(time.time(), 3), "boot": round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)}
        line = encode_event({"seq": self.seq + 1, **at, "kind": kind, **fields})
        with contextlib.suppress(OSError):
            if self.size + len(line) > self.limit:
                self._rotate()
            if self._append(line):
                self.seq += 1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.fd = os.open(self.path, flags, 0o600)

    def _append(self, line: bytes) -> bool:
        try:
            write_all(self.fd, line)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.fd, self.size)
            return False
        self.size += len(line)
        return True

    def _rotate(self) -> None:
        """Begin a new segment. A reader finds the one before it under its other name."""
        base = (_base_of(self.path) or 0) + self.size
        os.close(self.fd)
        os.replace(self.path, self.path + BEFORE)
        self._open()
        self.size = os.fstat(self.fd).st_size
        self._append(_first_line(base))


def _first_line(base: int) -> bytes:
    return encode_event({"seq": 0, "at": round(time.time(), 3), "kind": "segment", "base": base})


def _base_of(path: str) -> int | None:
    """Return the number of the first byte of a segment, None if it cannot be read."""
    with _opened(path) as fd:
        return None if fd < 0 else _base(fd)


def _base(fd: int) -> int:
    line, newline, _ = os.pread(fd, _FIRST_LINE, 0).partition(b"\n")
    first = decode_event(line) if newline else None
    base = first.get("base") if first is not None and first.get("kind") == "segment" else 0
    return base if type(base) is int and 0 <= base < 1 << 62 else 0


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    """Yield the descriptor of a regular file, -1 if there is none. The rank may have replaced it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield -1
        return
    try:
        yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else -1
    finally:
        os.close(fd)


def read_segments(path: str, offset: int, length: int) -> tuple[int, bytes, int]:
    """Return the next bytes of a file of measurements: the number of the first one, the bytes, and the end of the file.

    The first one is behind ``offset`` when the segment with it has been replaced. Without a file, all is empty.

    :param length: most bytes
    """
    # The newer one first: of a segment that is replaced meanwhile, the other order would skip the one before it.
    with _opened(path) as current, _opened(path + BEFORE) as before:
        segments = [(_base(fd), fd, os.fstat(fd).st_size) for fd in (current, before) if fd >= 0]
        end = max((base + size for base, _, size in segments), default=0)
        for base, fd, size in sorted(segments):
            if offset < base + size:
                start = max(offset, base)
                with contextlib.suppress(OSError):
                    return start, os.pread(fd, length, start - base), end
    return max(offset, 0), b"", end


def read_measurements(folder: RunFolder, offsets: Mapping[str, int], most: int) -> tuple[list[Json], bytes]:
    """Return the next bytes of files of measurements: per file its place, and the bytes of all of them.

    :param offsets: ``samples`` or ``rank<k>.timings`` -> number of the first byte
    :param most: most bytes of all files together, each of which gets an equal part
    """
    parts: list[Json] = []
    pieces: list[bytes] = []
    length = most // max(1, len(offsets))
    for name, offset in offsets.items():
        start, data, end = read_segments(folder.file(*name.split(".")), offset, length)
        parts.append({"stream": name, "offset": start, "bytes": len(data), "end": end})
        pieces.append(data)
    return parts, b"".join(pieces)
