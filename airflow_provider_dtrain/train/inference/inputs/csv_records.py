"""Records of a CSV file, whose quoted values may have line breaks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

QUOTE = '"'
#: UTF-8 with a mark begins with these bytes.
MARK = b"\xef\xbb\xbf"


def csv_records(stream: BinaryIO, delimiter: str, *, is_whole: bool = False) -> Iterator[tuple[int, bool]]:
    """Yield the bytes of each record with its line end, and False for a blank line.

    It divides as pyarrow and Python's own module do: a quote counts at the beginning of a value only.

    :param is_whole: the stream is a file from its header to its end
    :raises ValueError: such a file ends inside a quoted value
    """
    # Each byte is one character, and every separator is ASCII.
    lines = io.TextIOWrapper(stream, "latin-1", newline="")
    size = rows = 0
    is_open = False
    is_first = True
    for line in lines:
        if is_first and line.startswith(MARK.decode("latin-1")):
            size, line = 3, line[3:]
        is_first = False
        size += len(line)
        if is_open or QUOTE in line:
            is_open = _ends_open(line, delimiter, is_open)
        if not is_open:
            is_row = len(line) > 2 or line not in ("\n", "\r", "\r\n", "")
            rows += is_row
            yield size, is_row
            size = 0
    if is_open and is_whole:
        raise _open_quote(f"row {rows}" if rows else "the header")
    if is_open:
        yield size, True


class ClosedQuotes(io.RawIOBase):
    """A CSV file as a stream, which raises at its end if that is inside a quoted value."""

    def __init__(self, stream: BinaryIO, delimiter: str) -> None:
        self._stream = stream
        self._delimiter = delimiter
        self._is_first = True
        self._is_open = False
        #: Last line up to now, which may go on.
        self._rest = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes.

        :raises ValueError: there are none, and a quoted value has no end
        """
        count: int = self._stream.readinto(buffer)  # type: ignore[attr-defined]
        lines = (self._rest + memoryview(buffer)[:count]).splitlines(keepends=True)
        self._rest = lines.pop() if count else b""
        for line in lines:
            if self._is_open or b'"' in line:
                text = line.removeprefix(MARK) if self._is_first else line
                self._is_open = _ends_open(text.decode("latin-1"), self._delimiter, self._is_open)
            self._is_first = False
        if not count and self._is_open:
            raise _open_quote("the last row")
        return count


def _open_quote(row: str) -> ValueError:
    """Return the error for a file that ends inside a quoted value: it would hold the rows after its quote as text."""
    return ValueError(
        f"a quote in {row} is never closed. Is the file complete? A value that begins with a quote needs quotes "
        "around it, and its own quotes twice"
    )


def _ends_open(line: str, delimiter: str, is_open: bool) -> bool:
    """Return whether a line ends inside a quoted value.

    :param is_open: whether it begins inside one
    """
    at = 0
    while True:
        if is_open:
            at = line.find(QUOTE, at)
            while at >= 0 and line.startswith(QUOTE, at + 1):
                at = line.find(QUOTE, at + 2)
            if at < 0:
                return True
            is_open = False
        else:
            at = line.find(QUOTE, at)
            if at < 0:
                return False
            is_open = at == 0 or line[at - 1] == delimiter
        at += 1
