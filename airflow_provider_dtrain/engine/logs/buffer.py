"""Buffer for a rank's log between its host and the task log: bounded, in order, each gap marked."""

from __future__ import annotations

import re
import threading
from collections import deque
from dataclasses import dataclass

#: Longest line. A longer line is split, because Airflow's log view shows such lines badly.
MAX_LINE_BYTES = 8192
#: Bytes that may wait. Further bytes are left out and marked.
MOST_WAITING_BYTES = 1 << 20
#: Bytes that a piece takes in addition to its text, separate gaps that may wait, and characters of the reason of a gap.
PIECE_BYTES, MOST_GAPS, REASON_LIMIT = 256, 100, 300
SEVERAL = "several reasons"
_EMPTIED = "Airflow emptied this file when the trial came back to this triggerer; what can be shown again follows"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")

#: Prefix that torch puts before the lines of a failed rank, and before its own warnings.
_TORCH_PREFIX = re.compile(r"^\[rank0\]: ?")
#: Lines of libraries that say nothing about a training. Torch logs this one for each connection between ranks whose
#: addresses have no names. The log on the host and in the store has it.
_NOISE = re.compile(r"\[W[^]]*\] \[c10d\] The hostname of the client socket cannot be retrieved\. err=-?\d+\s*")
PREFIX = "[rank 0] "


def clean(line: str) -> str:
    """Return a line without terminal escapes and control characters, from its last carriage return on."""
    return _CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2])


@dataclass(frozen=True)
class LogPlace:
    """Identity of a log: its trial and attempt."""

    trial_id: int
    #: Number of the attempt within the trial, from 1.
    attempt: int

    def begins(self, offset: int) -> str:
        """Return the line that begins a block of log at byte ``offset``."""
        return f"{PREFIX}--- trial {self.trial_id}, attempt {self.attempt}: the log from byte {offset} on ---"

    def missing(self, start: int, end: int | None, reason: str) -> str:
        """Return the line that stands for bytes that are not in the task log.

        :param end: None = up to the end of the log, which is not known
        """
        command = f"airflow dtrain trials logs {self.trial_id} --attempt {self.attempt} --from {start}"
        what = f"bytes {start} to {end} ({end - start})" if end is not None else f"everything from byte {start} on"
        until = "" if end is None else f" --to {end}"
        return (
            f"{PREFIX}--- trial {self.trial_id}, attempt {self.attempt}: {what} left out: {reason}. "
            f"Read: {command}{until} ---"
        )


@dataclass
class Shown:
    """Part of a log that was handed to one file of the task log."""

    attempt_id: int
    place: LogPlace
    begin: int
    end: int

    def emptied_mark(self) -> str:
        """Return the line that stands for this part after Airflow has emptied the file."""
        return self.place.missing(self.begin, self.end, _EMPTIED)


@dataclass
class _Bytes:
    offset: int
    data: bytearray

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    @property
    def cost(self) -> int:
        """Memory that it takes, bytes."""
        return PIECE_BYTES + len(self.data)


@dataclass
class _Gap:
    offset: int
    end: int | None
    reason: str

    @property
    def cost(self) -> int:
        """Memory that it takes, bytes."""
        return PIECE_BYTES + len(self.reason)


class LogBuffer:
    """Buffer that takes bytes and gaps in one thread, and returns whole lines in another one.

    :param begin: offset of the first byte
    :param most_bytes: bytes that may wait
    """

    def __init__(self, place: LogPlace, begin: int, *, most_bytes: int = MOST_WAITING_BYTES) -> None:
        self.place = place
        self._most = most_bytes
        #: Offset before which everything was returned, or marked as missing.
        self.position = begin
        self._begins: int | None = begin
        self._pieces: deque[_Bytes | _Gap] = deque()
        #: Bytes and gaps that wait; the bytes include those that the pieces take.
        self._waiting = 0
        self._gaps = 0
        self._is_full = False
        self._is_finished = False
        self._lock = threading.Lock()

    def add(self, offset: int, data: bytes) -> None:
        """Add bytes, or leave them out while too many wait."""
        if not data:
            return
        with self._lock:
            limit = self._most // 2 if self._is_full else self._most
            self._is_full = self._is_crowded or self._waiting + len(data) > limit
            last = self._pieces[-1] if self._pieces else None
            if self._is_full:
                self._add_gap(offset, offset + len(data), "more than the task log takes (task_log_rate)")
            elif isinstance(last, _Bytes) and last.end == offset:
                last.data += data
                self._waiting += len(data)
            else:
                self._push(_Bytes(offset, bytearray(data)))

    def skip(self, start: int, end: int | None, reason: str) -> None:
        """Record that bytes will not arrive.

        :param end: None = everything from ``start`` on
        """
        with self._lock:
            self._add_gap(start, end, reason)

    def restart(self, offset: int) -> None:
        """Record that the next bytes begin at ``offset`` again."""
        with self._lock:
            if self._is_crowded:
                self._merge_last_gaps()
            self._push(_Gap(offset, offset, ""))

    def _add_gap(self, start: int, end: int | None, reason: str) -> None:
        reason = " ".join(reason[:REASON_LIMIT].split())
        last = self._pieces[-1] if self._pieces else None
        is_same = isinstance(last, _Gap) and last.reason == reason
        if isinstance(last, _Gap) and last.end == start != last.offset and (is_same or self._is_crowded):
            self._waiting -= last.cost
            last.end = end
            last.reason = reason if is_same else SEVERAL
            self._waiting += last.cost
        elif end is None or end > start:
            self._push(_Gap(start, end, reason))

    @property
    def _is_crowded(self) -> bool:
        """True when further gaps share a mark, and further bytes are left out."""
        return self._gaps >= MOST_GAPS or self._waiting > self._most

    def _merge_last_gaps(self) -> None:
        """Replace the gaps after the last bytes by one."""
        gaps: list[_Gap] = []
        while self._pieces and isinstance(last := self._pieces[-1], _Gap):
            self._pieces.pop()
            self._forget(last)
            gaps += [last] if last.end != last.offset else []
        if gaps:
            ends = [gap.end for gap in gaps if gap.end is not None]
            is_open = len(ends) < len(gaps)
            self._push(_Gap(min(gap.offset for gap in gaps), None if is_open else max(ends), SEVERAL))

    def _push(self, piece: _Bytes | _Gap) -> None:
        self._pieces.append(piece)
        self._waiting += piece.cost
        self._gaps += isinstance(piece, _Gap)

    def _forget(self, piece: _Bytes | _Gap) -> None:
        """Stop counting a piece that was taken out."""
        self._waiting -= piece.cost
        self._gaps -= isinstance(piece, _Gap)

    def finish(self) -> None:
        """Count an unfinished last line as a line, because nothing follows it."""
        self._is_finished = True

    def leave_out(self, reason: str) -> None:
        """Replace all bytes and gaps that wait by one mark."""
        with self._lock:
            if not self._pieces:
                return
            starts = [piece.offset for piece in self._pieces]
            ends = [piece.end for piece in self._pieces]
            known = [end for end in ends if end is not None]
            self._pieces.clear()
            self._waiting = self._gaps = 0
            self._add_gap(min(starts), None if None in ends else max(known), reason)

    @property
    def has_record(self) -> bool:
        """True when :meth:`record` would return one."""
        with self._lock:
            if not self._pieces:
                return False
            first = self._pieces[0]
            if isinstance(first, _Gap) or len(self._pieces) > 1 or self._is_finished:
                return True
            return len(first.data) >= MAX_LINE_BYTES or b"\n" in first.data

    @property
    def is_empty(self) -> bool:
        """True when nothing waits, not even an unfinished line."""
        return not self._pieces

    def record(self, most_bytes: int) -> list[str]:
        """Return the next lines, at most ``most_bytes`` or one line.

        Return none when no line is complete. Afterwards, :attr:`position` is behind the lines.
        """
        lines: list[str] = []
        with self._lock:
            left = most_bytes
            while self._pieces and (left > 0 or not lines):
                first = self._pieces[0]
                if isinstance(first, _Gap):
                    marks = self._mark(first)
                    lines += marks
                    left -= sum(map(len, marks))
                    self._forget(self._pieces.popleft())
                    continue
                cut = self._cut(first, max(left, MAX_LINE_BYTES if not lines else 0))
                if cut == 0:
                    break
                lines += self._lines(first, cut)
                left -= cut
        return lines

    def _mark(self, gap: _Gap) -> list[str]:
        if gap.end == gap.offset:
            # The file is read again from here.
            self.position = self._begins = gap.offset
            return []
        self.position = gap.end if gap.end is not None else gap.offset
        self._begins = None
        return [self.place.missing(gap.offset, gap.end, gap.reason)]

    def _cut(self, piece: _Bytes, most: int) -> int:
        """Return how many bytes of a piece make whole lines of at most ``most`` bytes together."""
        data = piece.data
        cut = data.rfind(b"\n", 0, most) + 1
        if cut:
            return cut
        is_closed = self._is_finished or len(self._pieces) > 1
        newline = data.find(b"\n", 0, MAX_LINE_BYTES)
        if newline >= 0 or (is_closed and len(data) <= MAX_LINE_BYTES):
            whole = newline + 1 if newline >= 0 else len(data)
            return whole if whole <= most else 0
        return MAX_LINE_BYTES if min(most, len(data)) >= MAX_LINE_BYTES else 0

    def _lines(self, piece: _Bytes, cut: int) -> list[str]:
        block = bytes(piece.data[:cut])
        del piece.data[:cut]
        lines = [self.place.begins(self._begins)] if self._begins is not None else []
        self._begins = None
        piece.offset += cut
        self.position = piece.offset
        self._waiting -= cut
        if not piece.data:
            self._forget(self._pieces.popleft())
        text = block.decode("utf-8", "replace").removesuffix("\n")
        shown = (_TORCH_PREFIX.sub("", clean(line)) for line in text.split("\n"))
        return lines + [PREFIX + part for line in shown if not _NOISE.fullmatch(line) for part in _broken(line)]


def _broken(line: str) -> list[str]:
    if len(line) <= MAX_LINE_BYTES:
        return [line]
    return [line[start : start + MAX_LINE_BYTES] for start in range(0, len(line), MAX_LINE_BYTES)]
