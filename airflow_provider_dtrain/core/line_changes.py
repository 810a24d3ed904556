"""Unified differences between texts, within a limit of work."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Work of all comparisons of one answer: pairs of lines that the matcher may have to consider. Seconds.
WORK_MOST: Final = 30_000_000
#: Equal lines around a change.
CONTEXT: Final = 3
_NO_NEWLINE: Final = "\n\\ No newline at end of file"


@dataclass(frozen=True, kw_only=True)
class LineChanges:
    """Unified diff of one text, without the lines that name the files."""

    lines: list[str]
    added: int
    removed: int


class LineComparison:
    """Compares texts one after the other, until the work for all of them reaches a limit."""

    def __init__(self, work_most: int = WORK_MOST) -> None:
        self._left = work_most

    def changes(self, before: str, after: str) -> LineChanges | None:
        """Return the unified diff of two texts with 3 lines of context, None if it needs more work than is left."""
        old, new = _lines(before), _lines(after)
        start, end = _common_ends(old, new)
        # The ends that are equal need no work, except the lines of context.
        before_it, behind_it = max(0, start - CONTEXT), max(0, end - CONTEXT)
        old, new = old[before_it : len(old) - behind_it], new[before_it : len(new) - behind_it]
        work = _work(old, new)
        if work > self._left:
            return None
        self._left -= work
        return _unified(old, new, before_it)


def _unified(old: list[str], new: list[str], skipped: int) -> LineChanges:
    """Return the unified diff of parts of two texts.

    :param skipped: equal lines before both parts
    """
    lines: list[str] = []
    added = removed = 0
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT):
        _, a, _, b, _ = group[0]
        _, _, a_end, _, b_end = group[-1]
        lines.append(f"@@ -{_range(a, a_end, skipped)} +{_range(b, b_end, skipped)} @@")
        for tag, a, a_end, b, b_end in group:
            if tag == "equal":
                lines += [f" {line}" for line in old[a:a_end]]
                continue
            lines += [f"-{line}" for line in old[a:a_end]]
            lines += [f"+{line}" for line in new[b:b_end]]
            removed, added = removed + a_end - a, added + b_end - b
    return LineChanges(lines=lines, added=added, removed=removed)


def _range(start: int, end: int, skipped: int) -> str:
    """Return lines of a text as a unified diff names them: from 1, and the line before them if there are none."""
    count, first = end - start, start + skipped + 1
    if count == 1:
        return str(first)
    return f"{first if count else first - 1},{count}"


def _lines(text: str) -> list[str]:
    """Return the lines of a text as diff has them. Only a newline ends a line."""
    if not text:
        return []
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += _NO_NEWLINE
        return lines
    return lines[:-1]


def _common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Return how many lines are equal at the begin, and how many at the end."""
    shorter = min(len(old), len(new))
    start = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    most = shorter - start
    return start, next((at for at in range(most) if old[-1 - at] != new[-1 - at]), most)


def _work(old: Sequence[str], new: Sequence[str]) -> int:
    """Return a bound of the matcher's steps: it searches for the longest common part once per part that it finds."""
    of_new = Counter(new)
    pairs = sum(of_new[line] for line in old)
    return (min(len(old), len(new), pairs) + 1) * (len(old) + len(new) + pairs)
