"""A search in the lines of a rank's log."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Final

from airflow_provider_dtrain.core.logs.clock import Sample, offsets_between
from airflow_provider_dtrain.core.logs.text import LogLevel, count_lines, levels_of, may_have, plain_text

#: Most characters of a text or expression.
QUERY_CHARS: Final = 500


@dataclass(frozen=True, kw_only=True)
class LogQuery:
    """Properties of the lines that are searched. A line must have all of them."""

    #: Text in the line. Case does not matter. Empty: any line.
    text: str = ""
    #: The text is a regular expression of Python, in which case matters.
    is_regex: bool = False
    #: Lines of this level and of more important ones; None: all.
    level: LogLevel | None = None
    #: Lines that were written in this span of time; None: without a limit.
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """True when every line is found."""
        return not self.text and self.level is None and self.since is None and self.until is None


def line_starts(content: bytes, start: int) -> list[int]:
    """Return the offset of each line of a part of a log that begins at ``start``."""
    lengths = (len(line) + 1 for line in content.split(b"\n"))
    return list(accumulate(lengths, initial=start))[: count_lines(content)]


def in_span(query: LogQuery, starts: Sequence[int], samples: Sequence[Sample]) -> range:
    """Return the indices of the lines that were written in the time of a query."""
    if query.since is None and query.until is None:
        return range(len(starts))
    span = offsets_between(samples, query.since, query.until)
    if span is None:
        return range(0)
    inside = [index for index, offset in enumerate(starts) if span[0] <= offset < span[1]]
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def with_text(lines: Sequence[str], query: LogQuery) -> list[int]:
    """Return the indices of the lines with the text or the expression of a query.

    An expression may take exponential time: it is searched in a process that can be ended.

    :raises re.error: the expression is not valid
    """
    if query.is_regex and query.text:
        search = re.compile(query.text).search
        return [index for index, line in enumerate(lines) if search(line)]
    wanted = query.text.lower()
    return [index for index, line in enumerate(lines) if wanted in line.lower()]


def may_match(content: bytes, query: LogQuery) -> bool:
    """Return False if no line of a part of a log has the text and the level. It is faster than to read each line."""
    text = plain_text(content)
    has_text = query.is_regex or query.text.lower() in text.lower()
    return has_text and may_have(text, query.level)


def with_level(lines: Sequence[str], among: Collection[int], level: LogLevel | None) -> list[int]:
    """Return those indices whose lines have a level or a more important one."""
    if level is None or not among:
        return sorted(among)
    found = levels_of(lines)
    return [index for index in sorted(among) if (of := found[index]) is not None and of.weight >= level.weight]
