"""Records of a CSV file, whose quoted values may have line breaks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

QUOTE = '"'


def csv_records(stream: BinaryIO, delimiter: str) -> Iterator[tuple[int, bool]]:
    """Yield the bytes of each record with its line end, and False for a blank line.

    It divides as pyarrow and Python's own module do: a quote counts at the beginning of a value only.
    """
    # Each byte is one character, and every separator is ASCII.
    lines = io.TextIOWrapper(stream, "latin-1", newline="")
    size = 0
    is_open = False
    is_first = True
    for line in lines:
        if is_first and line.startswith("\xef\xbb\xbf"):
            size, line = 3, line[3:]
        is_first = False
        size += len(line)
        if is_open or QUOTE in line:
            is_open = _ends_open(line, delimiter, is_open)
        if not is_open:
            yield size, len(line) > 2 or line not in ("\n", "\r", "\r\n", "")
            size = 0
    if is_open:
        yield size, True


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
