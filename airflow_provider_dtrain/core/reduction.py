"""Reduction of a curve to a number of points that a chart can draw, which keeps every extreme value visible."""

from __future__ import annotations

import math
from collections.abc import Sequence


def reduced(y: Sequence[float | None], most: int) -> list[int]:
    """Return the indices of the points that stay, in order: first, last, and minimum and maximum of each part.

    A part whose values are all missing keeps its first point, so that the line stays broken there.

    :param y: values in the order of the chart; None or not finite: missing
    :param most: number of points to keep at most, >= 4
    """
    count = len(y)
    if count <= most:
        return list(range(count))
    parts = (most - 2) // 2
    kept = {0, count - 1}
    for part in range(parts):
        start = 1 + part * (count - 2) // parts
        end = 1 + (part + 1) * (count - 2) // parts
        kept.update(_extremes(y, start, end))
    return sorted(kept)


def _extremes(y: Sequence[float | None], start: int, end: int) -> tuple[int, ...]:
    low = high = -1
    lowest, highest = math.inf, -math.inf
    for index in range(start, end):
        value = y[index]
        if value is None or not math.isfinite(value):
            continue
        if low < 0 or value < lowest:
            low, lowest = index, value
        if high < 0 or value > highest:
            high, highest = index, value
    if low >= 0:
        return low, high
    return (start,) if start < end else ()


def even(first: int, last: int, count: int) -> list[int]:
    """Return at most ``count`` integers from ``first`` to ``last``, evenly spread and without duplicates.

    :param count: >= 2
    """
    if last <= first:
        return [first]
    number = min(count, last - first + 1)
    return [first + index * (last - first) // (number - 1) for index in range(number)]
