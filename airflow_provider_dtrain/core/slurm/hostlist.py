"""Slurm's lists of hosts: ``n[1-3,07],login``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

#: Maximum number of names that a list may have: Slurm's own limit is 64,000 hosts.
MAX_HOSTS: Final = 65536
_RANGE: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_PART: Final = re.compile(r"[^\[\],\s]*(?:\[[\d,-]+\][^\[\],\s]*)*", re.ASCII)
_NUMBERED: Final = re.compile(r"(.*?)(\d{1,18})", re.ASCII | re.DOTALL)


def expand(text: str) -> list[str]:
    """Return the names of a list of hosts in its order, without repetition.

    :raises ValueError: the text is not a list of hosts, or has more than :data:`MAX_HOSTS`
    """
    text = text.strip()
    if text in ("", "(null)", "None assigned", "n/a"):
        return []
    names: dict[str, None] = {}
    for part in _parts(text):
        for name in _names(part):
            names[name] = None
            if len(names) > MAX_HOSTS:
                raise ValueError(f"a list of hosts has more than {MAX_HOSTS} names")
    return list(names)


def _parts(text: str) -> Iterator[str]:
    start = 0
    while True:
        match = _PART.match(text, start)
        end = match.end() if match else start
        if end == start or (end < len(text) and text[end] != ","):
            raise ValueError(f"{text[:100]!r} is not a list of hosts")
        yield text[start:end]
        if end == len(text):
            return
        start = end + 1


def _names(part: str) -> Iterator[str]:
    """Yield the names of one part. The last range of several varies fastest."""
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield head
        return
    ranges, _, tail = rest.partition("]")
    for number in _numbers(ranges):
        for ending in _names(tail):
            yield f"{head}{number}{ending}"


def _numbers(ranges: str) -> Iterator[str]:
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:100]!r} is not a range of numbers")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"{text!r} is a range that ends before it begins")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def compress(names: list[str]) -> str:
    """Return names as a list of hosts, shortened where numbers follow each other."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: dict[str, None] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain[name] = None
        else:
            groups.setdefault((match[1], len(match[2])), []).append(int(match[2]))
    return ",".join([*plain, *(_group(head, width, numbers) for (head, width), numbers in groups.items())])


def _group(head: str, width: int, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{low:0{width}d}" + (f"-{high:0{width}d}" if high > low else "") for low, high in runs]
    return head + (texts[0] if len(texts) == 1 and "-" not in texts[0] else f"[{','.join(texts)}]")
