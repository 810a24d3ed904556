"""Files of a run as streams of frames."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

from ..fields import number, parse_object
from ..file_access import read_bytes
from ..files.events import decode_event
from ..files.layout import RunFolder, inode_of
from ..limits import CHUNK, IN_PLACE_BYTES, LOG_LAG, LOG_PAUSE_S, SKIP, SMALL, WINDOW
from ..names import Json
from .progress import RunProgress


class FileStream:
    """A growing file that is sent from an offset on.

    :param whole: send whole lines only
    """

    def __init__(self, name: str, path: str, offset: int, *, whole: bool) -> None:
        self.name = name
        self.path = path
        self.whole = whole
        self.offset = self.acked = offset
        self.epoch = 0
        #: End of the part that is sent, once the writer is gone. Bytes appended later are ignored.
        self.limit: int | None = None
        #: Gaps that were sent and not acknowledged, [start, end).
        self.skipped: list[tuple[int, int]] = []
        #: Reading of the monotonic clock before which no further frame is due.
        self.not_before = 0.0

    def size(self) -> int:
        """Return the file's length. One that does not exist has no news: it was not written yet, or removed."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return self.offset
        size = found.st_size if stat.S_ISREG(found.st_mode) else 0
        return size if self.limit is None else min(size, self.limit)

    def acknowledge(self, offset: int) -> None:
        """Record that the control side has all bytes before ``offset``."""
        self.acked = max(self.acked, min(offset, self.offset))
        self.skipped = [gap for gap in self.skipped if gap[1] > self.acked]

    def room(self) -> int:
        """Return the number of bytes that may be sent now. Bytes of a gap do not count as sent."""
        unsent = sum(end - max(start, self.acked) for start, end in self.skipped)
        return WINDOW - (self.offset - self.acked - unsent)

    def gap(self, length: int, reason: str) -> tuple[Json, bytes]:
        """Return the frame for omitted bytes, and move the offset behind them."""
        frame = {"t": "gap", "stream": self.name, "offset": self.offset, "skip_bytes": length, "reason": reason}
        self.skipped.append((self.offset, self.offset + length))
        self.offset += length
        return self._numbered(frame), b""

    def _numbered(self, frame: Json) -> Json:
        return {**frame, "epoch": self.epoch} if self.epoch else frame

    def peek(self) -> bytes:
        """Return the next bytes that may be sent: whole lines, or any bytes of a log. The offset stays."""
        limit = min(self.room(), WINDOW if self.whole else CHUNK, self.size() - self.offset)
        if limit <= 0:
            return b""
        # Lines are sent whole. An offset that does not follow a newline is inside a line that is being skipped.
        if self.whole and self.offset and self._read(self.offset - 1, 1) != b"\n":
            return b""
        data = self._read(self.offset, limit)
        return data[: data.rfind(b"\n") + 1] if self.whole else data

    def _read(self, offset: int, length: int) -> bytes:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(fd, length, offset)
        except OSError:
            return b""
        finally:
            os.close(fd)

    def next(self, final: bool) -> tuple[Json, bytes] | None:
        """Return the next frame, None if there is nothing to send now.

        :param final: no process writes to the file from now on
        """
        size = self.size()
        if size < self.offset and not self.whole:
            # A log is short for a moment while it is cut.
            time.sleep(0.01)
            size = self.size()
        if size < self.offset:
            return self._restart(size)
        if size == self.offset or self.room() <= 0:
            return None
        hole = None if self.whole else self._hole()
        freed = hole[1] - max(hole[0], self.offset) if hole is not None else 0
        if not self.whole and size - self.offset - freed > LOG_LAG:
            # The end of a run is sent after its logs. A control side that lags behind must not delay it.
            return self.gap(size - self.offset - LOG_LAG // 8, "the follower was far behind")
        if hole is not None and hole[0] <= self.offset:
            return self.gap(hole[1] - self.offset, "beyond log_limit")
        data = self.peek()
        hole = None if self.whole else self._hole()
        if hole is not None and hole[0] < self.offset + len(data):
            # The part was freed before or during the read. Bytes behind its start are not the rank's.
            data = data[: max(0, hole[0] - self.offset)]
            if not data:
                return self.gap(hole[1] - self.offset, "beyond log_limit")
        if data:
            return self.take(data)
        return self.skip(final) if self.whole else None

    def skip(self, final: bool) -> tuple[Json, bytes] | None:
        """Return a gap for a line that is too long or was not finished, None while it may still become whole.

        The gap ends behind the next newline, or inside the line, where the next gap continues. Gaps are sent one at
        a time, so that a line of any length costs the control side no more than a frame for each :data:`SKIP`.
        """
        size = self.size()
        is_inside = self.offset > 0 and self._read(self.offset - 1, 1) != b"\n"
        is_too_long = is_inside or size - self.offset >= WINDOW
        if self.skipped or self.room() < WINDOW or size <= self.offset or not (final or is_too_long):
            return None
        data = self._read(self.offset, min(SKIP, size - self.offset))
        end = data.find(b"\n") + 1
        message = f"a line of more than {WINDOW} bytes" if is_too_long else "an unfinished line"
        return self.gap(end or len(data), message) if data else None

    def _restart(self, size: int) -> tuple[Json, bytes]:
        message = f"the file has only {size} bytes: the host lost data that was not on its disk"
        frame = {"t": "gap", "stream": self.name, "offset": self.offset, "reason": message}
        self.epoch += 1
        self.offset = self.acked = 0
        self.skipped = []
        return self._numbered(frame), b""

    def take(self, data: bytes) -> tuple[Json, bytes]:
        """Return a frame with these bytes, and move the offset behind them."""
        frame = {"t": "data", "stream": self.name, "offset": self.offset, "bytes": len(data)}
        self.offset += len(data)
        return self._numbered(frame), data

    def drained(self) -> bool:
        """Return whether all bytes of the file were sent."""
        return self.offset == self.size()

    def _hole(self) -> tuple[int, int] | None:
        return hole_of(self.path, self.offset, self.size())


def hole_of(path: str, offset: int, size: int) -> tuple[int, int] | None:
    """Return the part of a log that ``log_limit`` freed, if it reaches beyond an offset.

    :param size: of the log, bytes
    """
    # The rank may have replaced the file. The supervisor never writes a longer one.
    content = read_bytes(os.path.join(os.path.dirname(path), "gaps.json"), IN_PLACE_BYTES)
    gaps = (parse_object(content or b"") or {}).get("gaps")
    for pair in gaps if isinstance(gaps, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and number(pair[0]) >= 0:
            end = min(number(pair[1]), size)
            if end > max(offset, pair[0]):
                return pair[0], end
    return None


def read_log(fd: int, path: str, start: int, length: int) -> tuple[int, bytes]:
    """Return offset and bytes of a part of a log, without the part that ``log_limit`` freed.

    The offset is behind the freed part if ``start`` lies in it.
    """
    while True:
        data = os.pread(fd, length, start)
        # A gap is recorded before its bytes are freed, so it is looked up after they were read.
        hole = hole_of(path, start, os.fstat(fd).st_size)
        if hole is None or hole[0] >= start + len(data):
            return start, data
        if hole[0] > start:
            return start, data[: hole[0] - start]
        start = hole[1]


class Subscription:
    """Subscription of a control side to a run, with the offset of each stream."""

    def __init__(self, folder: RunFolder, plan: Json, offsets: dict[str, int], logs: str) -> None:
        self.folder = folder
        self.inode = inode_of(folder.path)
        self.supervisor = FileStream(
            "supervisor.events", folder.file("events.supervisor"), offsets.get("supervisor.events", 0), whole=True
        )
        self.ranks: list[FileStream] = []
        for rank in plan["ranks"]:
            name = f"rank{rank['rank']}"
            events = f"{name}.events"
            self.ranks.append(FileStream(events, folder.file(name, "events"), offsets.get(events, 0), whole=True))
            if logs == "all" or (logs == "rank0" and rank["rank"] == 0):
                log = f"{name}.log"
                self.ranks.append(FileStream(log, folder.file(name, "log"), offsets.get(log, 0), whole=False))
        #: The ``ended`` event was seen, so the ranks' files no longer grow.
        self.final = False
        self.complete = False
        self.dirty = True
        self.progress = RunProgress(folder)
        self.not_before = 0.0
        #: When a log is due whose last frame was small, None if no log waits for that.
        self.log_due: float | None = None

    def stream(self, name: str) -> FileStream | None:
        """Return a stream by its name."""
        return next((stream for stream in [self.supervisor, *self.ranks] if stream.name == name), None)

    def is_due(self, now: float) -> bool:
        """Return whether there may be something to send now."""
        has_log = self.log_due is not None and now >= self.log_due
        return (self.dirty or has_log) and now >= self.not_before

    def frames(self, now: float) -> Iterator[tuple[Json, bytes]]:
        """Yield at most one frame of each stream, ranks first, so that ``ended`` follows all that they wrote.

        :param now: reading of the monotonic clock
        """
        self.dirty = False
        self.log_due = None
        for stream in self.ranks:
            if now < stream.not_before and not self.final:
                self.log_due = min(stream.not_before, self.log_due or stream.not_before)
                continue
            frame = stream.next(self.final)
            if frame is not None:
                self.dirty = True
                if not stream.whole and len(frame[1]) < SMALL:
                    stream.not_before = now + LOG_PAUSE_S
                yield self._named(frame)
        frame = self._of_supervisor()
        if frame is not None:
            self.dirty = True
            yield self._named(frame)

    def _named(self, frame: tuple[Json, bytes]) -> tuple[Json, bytes]:
        return {**frame[0], "run": self.folder.name}, frame[1]

    def _of_supervisor(self) -> tuple[Json, bytes] | None:
        """Return the supervisor's next events. The last one waits until the ranks' files were sent to their end."""
        stream = self.supervisor
        if stream.size() < stream.offset:
            return stream.next(False)
        data = stream.peek()
        cut = position_of_end(data)
        if cut is not None and not self.final:
            # All data of the ranks is in their files now, but may not have been when they were read.
            self.final = self.dirty = True
            for rank in self.ranks:
                rank.limit = rank.size()
            data = data[:cut]
        elif cut is not None:
            if all(rank.drained() for rank in self.ranks):
                self.complete = True
            else:
                data = data[:cut]
        return stream.take(data) if data else stream.skip(self.final) if cut is None else None


def position_of_end(data: bytes) -> int | None:
    """Return the offset of the ``ended`` event in whole lines, None if it is not there."""
    position = 0
    for line in data.splitlines(keepends=True):
        if (decode_event(line) or {}).get("kind") == "ended":
            return position
        position += len(line)
    return None
