"""Points of a time series: one per interval, each with count, mean, minimum and maximum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import mul
from typing import NamedTuple


class Key(NamedTuple):
    """Identity of a series on its host."""

    metric: str
    #: UUID of a GPU, or class and hook of a callback; empty for the host itself and for other timings of ranks.
    device: str = ""
    #: Rank that measured it; None for the host and its GPUs.
    rank: int | None = None


@dataclass(frozen=True)
class Points:
    """Points of one series in the order of time, as parallel lists.

    :param at: starts of the intervals, Unix seconds
    :param count: measurements in each interval, 1 or more
    """

    at: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    minimum: list[float] = field(default_factory=list)
    maximum: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.at)

    def add(self, at: int, count: int, mean: float, minimum: float, maximum: float) -> None:
        """Append one point. The caller keeps the order of time."""
        self.at.append(at)
        self.count.append(count)
        self.mean.append(mean)
        self.minimum.append(minimum)
        self.maximum.append(maximum)

    def between(self, start: int, end: int) -> Points:
        """Return the points with ``start <= at < end``."""
        first, last = bisect_left(self.at, start), bisect_left(self.at, end)
        return self if last - first == len(self.at) else self._part(first, last)

    def in_order(self) -> Points:
        """Return the points sorted by time."""
        at = sorted(self.at)
        return self if at == self.at else self._picked(sorted(range(len(at)), key=self.at.__getitem__))

    def reduced(self, step_s: int) -> Points:
        """Return one point for each interval of ``step_s`` seconds that has points, with their extremes.

        Takes linear time. Without gaps, whole intervals take a tenth of the time.

        :param step_s: length of the new intervals, a multiple of the present one
        """
        apart = self._apart()
        factor = step_s // apart if apart and step_s % apart == 0 else 0
        if not 2 <= factor <= len(self.at):
            return self._reduced_each(step_s)
        # Points up to the start of the next interval, whole intervals, and the rest.
        head = min(len(self.at), -(-(-self.at[0] % step_s) // apart))
        body = head + (len(self.at) - head) // factor * factor
        parts = [self._part(0, head)._reduced_each(step_s), self._part(head, body)._reduced_by(factor, step_s)]
        parts.append(self._part(body, len(self.at))._reduced_each(step_s))
        return _joined([part for part in parts if part.at])

    def _apart(self) -> int:
        """Return the distance of two points if all have the same one and equal counts, otherwise 0."""
        if len(self.at) < 2 or self.count != [self.count[0]] * len(self.count):
            return 0
        apart = self.at[1] - self.at[0]
        return apart if apart > 0 and self.at == list(range(self.at[0], self.at[-1] + 1, apart)) else 0

    def _reduced_by(self, factor: int, step_s: int) -> Points:
        """Return one point for each ``factor`` points, which have equal distances and counts."""
        at = [second - second % step_s for second in self.at[::factor]]
        low = list(map(min, *(self.minimum[index::factor] for index in range(factor))))
        high = list(map(max, *(self.maximum[index::factor] for index in range(factor))))
        groups = zip(*(self.mean[index::factor] for index in range(factor)), strict=True)
        mean = [sum(group) / factor for group in groups]
        count = [factor * self.count[0]] * len(at) if at else []
        return Points(at, count, list(map(min, map(max, mean, low), high)), low, high)

    def _reduced_each(self, step_s: int) -> Points:
        """Return one point for each interval that has points, interval by interval."""
        at = [second - second % step_s for second in self.at]
        if all(before < after for before, after in pairwise(at)):
            return self if at == self.at else Points(at, self.count, self.mean, self.minimum, self.maximum)
        starts = [index for index in range(len(at)) if index == 0 or at[index] != at[index - 1]]
        columns = (self.count, self.mean, self.minimum, self.maximum)
        found = Points([at[start] for start in starts], *([column[start] for start in starts] for column in columns))  # type: ignore[arg-type]
        for place, (start, end) in enumerate(zip(starts, [*starts[1:], len(at)], strict=True)):
            if end - start > 1:
                counts = self.count[start:end]
                low, high = min(self.minimum[start:end]), max(self.maximum[start:end])
                mean = sum(map(mul, counts, self.mean[start:end])) / sum(counts)
                found.count[place], found.mean[place] = sum(counts), min(max(mean, low), high)
                found.minimum[place], found.maximum[place] = low, high
        return found

    def _part(self, start: int, end: int) -> Points:
        columns = (self.at, self.count, self.mean, self.minimum, self.maximum)
        at, count, mean, minimum, maximum = (column[start:end] for column in columns)
        return Points(at, count, mean, minimum, maximum)  # type: ignore[arg-type]

    def _picked(self, indices: Sequence[int]) -> Points:
        columns = (self.at, self.count, self.mean, self.minimum, self.maximum)
        at, count, mean, minimum, maximum = ([column[index] for index in indices] for column in columns)
        return Points(at, count, mean, minimum, maximum)  # type: ignore[arg-type]


def merged(parts: Iterable[Points], step_s: int) -> Points:
    """Return one series from several parts in any order. Points of the same interval become one.

    :param step_s: length of the intervals, seconds
    """
    return _joined(sorted(parts, key=lambda one: one.at[:1])).in_order().reduced(step_s)


def _joined(parts: Sequence[Points]) -> Points:
    if len(parts) == 1:
        return parts[0]
    found = Points()
    for part in parts:
        found.at.extend(part.at)
        found.count.extend(part.count)
        found.mean.extend(part.mean)
        found.minimum.extend(part.minimum)
        found.maximum.extend(part.maximum)
    return found
