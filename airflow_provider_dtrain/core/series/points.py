"""Points of a time series: one per interval, each with count, mean, minimum and maximum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import NamedTuple


class Key(NamedTuple):
    """Identity of a series on its host."""

    metric: str
    #: UUID of a GPU; empty for the host itself and for ranks.
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
        kept = [index for index, at in enumerate(self.at) if start <= at < end]
        if not kept:
            return Points()
        if len(kept) == len(self.at):
            return self
        return self._picked(kept)

    def in_order(self) -> Points:
        """Return the points sorted by time."""
        if all(before <= after for before, after in zip(self.at, self.at[1:], strict=False)):
            return self
        return self._picked(sorted(range(len(self.at)), key=self.at.__getitem__))

    def reduced(self, step_s: int) -> Points:
        """Return one point for each interval of ``step_s`` seconds that has points, with their extremes.

        Takes linear time.

        :param step_s: length of the new intervals, a multiple of the present one
        """
        at = [second - second % step_s for second in self.at]
        if all(before < after for before, after in zip(at, at[1:], strict=False)):
            return self if at == self.at else Points(at, self.count, self.mean, self.minimum, self.maximum)
        starts = [index for index in range(len(at)) if index == 0 or at[index] != at[index - 1]]
        found = Points()
        for start, end in zip(starts, [*starts[1:], len(at)], strict=True):
            self._add_reduced(found, at[start], start, end)
        return found

    def _add_reduced(self, found: Points, at: int, start: int, end: int) -> None:
        counts = self.count[start:end]
        total = sum(counts)
        minimum, maximum = min(self.minimum[start:end]), max(self.maximum[start:end])
        mean = sum(map(mul, counts, self.mean[start:end])) / total
        found.add(at, total, min(max(mean, minimum), maximum), minimum, maximum)

    def _picked(self, indices: Sequence[int]) -> Points:
        columns = (self.at, self.count, self.mean, self.minimum, self.maximum)
        at, count, mean, minimum, maximum = ([column[index] for index in indices] for column in columns)
        return Points(at, count, mean, minimum, maximum)  # type: ignore[arg-type]


def merged(parts: Iterable[Points], step_s: int) -> Points:
    """Return one series from several parts in any order. Points of the same interval become one.

    :param step_s: length of the intervals, seconds
    """
    joined = Points()
    for part in parts:
        joined.at.extend(part.at)
        joined.count.extend(part.count)
        joined.mean.extend(part.mean)
        joined.minimum.extend(part.minimum)
        joined.maximum.extend(part.maximum)
    return joined.in_order().reduced(step_s)
