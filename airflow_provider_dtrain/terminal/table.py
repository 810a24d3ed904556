"""Tables in plain text, without a library: ``dtrain`` starts in a tenth of a second."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

#: Spaces between two columns.
GAP = 2
#: Least width to which a column is folded.
NARROWEST = 6


def table_lines(
    names: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None, has_rule: bool = True
) -> Iterator[str]:
    """Yield the lines of a table. Texts that are wider than their column continue on the next line.

    :param names: of the columns
    :param width: of the terminal, in columns; None = no limit
    :param has_rule: a line below the names
    """
    columns = _widths([names, *rows], width)
    yield from _lines(names, columns)
    if has_rule:
        yield "─" * (sum(columns) + GAP * (len(columns) - 1))
    for row in rows:
        yield from _lines(row, columns)


def _widths(rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Return the widths of the columns. The widest one gives way until the table fits."""
    columns = [max(max(map(_width, text.split("\n"))) for text in texts) for texts in zip(*rows, strict=True)]
    if width is None:
        return columns
    room = max(width - GAP * (len(columns) - 1), 0)
    while (excess := sum(columns) - room) > 0:
        order = sorted(columns)
        widest = order[-1]
        if widest <= NARROWEST:
            return columns
        share = columns.count(widest)
        lower = max((one for one in order if one < widest), default=0)
        less = max(min(-(-excess // share), widest - max(lower, NARROWEST)), 1)
        columns = [one - less if one == widest else one for one in columns]
    return columns


def _lines(texts: Sequence[str], columns: Sequence[int]) -> Iterator[str]:
    cells = [_folded(text, column) for text, column in zip(texts, columns, strict=True)]
    for number in range(max(map(len, cells))):
        parts = (
            (found := cell[number] if number < len(cell) else "") + " " * (column - _width(found))
            for cell, column in zip(cells, columns, strict=True)
        )
        yield (" " * GAP).join(parts).rstrip()


def _folded(text: str, width: int) -> list[str]:
    """Return the lines of a text, folded at spaces where there are some."""
    found: list[str] = []
    for line in text.split("\n"):
        rest = line
        while _width(rest) > width:
            most = _fitting(rest, width)
            space = rest.rfind(" ", 0, most + 1)
            end = space if space > 0 else most
            found.append(rest[:end].rstrip())
            rest = rest[end:].lstrip() if space > 0 else rest[end:]
        found.append(rest)
    return found


def _fitting(text: str, width: int) -> int:
    """Return the number of characters that fit, at least 1."""
    used = 0
    for number, character in enumerate(text):
        used += _width(character)
        if used > width:
            return max(number, 1)
    return len(text)


def _width(text: str) -> int:
    """Return the number of columns that a terminal uses for a text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )
