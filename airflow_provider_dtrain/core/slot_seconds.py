"""Seconds of the slots of a host within a period: held, idle, and those in which the host got no gangs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Begin and end in seconds since 1970.
Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class SlotSeconds:
    """Parts of the time of all slots, whose sum is slots x period."""

    held: float
    idle: float
    #: Not held, and the host was not ready.
    away: float


def slot_seconds(slots: int, held: Iterable[Span], ready: Iterable[Span], period: Span) -> SlotSeconds:
    """Return how the time of a host's slots was used.

    :param slots: of the host, now. Slots that it has lost since then may have been held, and idle is 0 then
    :param held: a span per slot and gang; those of one slot do not overlap
    :param ready: spans in which the host was ready; they do not overlap
    """
    of_ready = _Within(sorted(one for one in (_cut(one, period) for one in ready) if one[0] < one[1]))
    length = max(0.0, period[1] - period[0])
    held_s = held_ready_s = 0.0
    for since, until in (_cut(one, period) for one in held):
        held_s += max(0.0, until - since)
        held_ready_s += of_ready.until(until) - of_ready.until(since) if until > since else 0.0
    idle = max(0.0, slots * of_ready.until(period[1]) - held_ready_s)
    return SlotSeconds(held=held_s, idle=idle, away=max(0.0, slots * length - held_s - idle))


def _cut(span: Span, period: Span) -> Span:
    return max(span[0], period[0]), min(span[1], period[1])


class _Within:
    """Sorted spans, and the time in them before a moment. A search takes O(log n)."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans, self.starts = spans, [since for since, _ in spans]
        self.before = [0.0]
        for since, until in spans:
            self.before.append(self.before[-1] + until - since)

    def until(self, at: float) -> float:
        index = bisect_right(self.starts, at)
        if not index:
            return 0.0
        since, until = self.spans[index - 1]
        return self.before[index - 1] + min(at, until) - since
