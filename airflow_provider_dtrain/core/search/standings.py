"""Standings of the reports at one rung: place and cut-off at the time of each decision, and now."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from airflow_provider_dtrain.core.search.asha import LAST

_ENDLESS: Final = 2**63


class Entered(NamedTuple):
    """One report at a rung."""

    #: Sort key of its metric, smallest first, see :func:`~airflow_provider_dtrain.core.search.asha.rank_value`.
    value: float
    #: Grows with each report of the rung.
    order: int
    at: datetime
    #: Time from which it no longer counts; None = it counts.
    left_at: datetime | None = None


class Standing(NamedTuple):
    """Place of a report when the decision on it was made."""

    #: From 1.
    place: int
    #: Number of reports, itself included.
    of: int
    #: Sort key that a report had to stay below to continue; None = every report continued.
    cut_off: float | None


def places_kept(count: int, divisor: int) -> int:
    """Return how many of the reports at a rung continue.

    :param count: reports, the new one included
    """
    return max(1, count // divisor)


def standings(entries: Sequence[Entered], divisor: int) -> list[Standing]:
    """Return the standing of each report at the time of its decision, in the order given.

    :param divisor: one report in ``divisor`` continues
    """
    present: list[tuple[float, int]] = []
    leaving: list[tuple[datetime, tuple[float, int]]] = []
    found: dict[int, Standing] = {}
    for at, order, index in sorted((entry.at, entry.order, index) for index, entry in enumerate(entries)):
        value, _, _, left_at = entries[index]
        while leaving and leaving[0][0] <= at:
            del present[bisect.bisect_left(present, leaving.pop(0)[1])]
        before = bisect.bisect_right(present, (value, _ENDLESS))
        count = len(present)
        kept = places_kept(count + 1, divisor)
        found[index] = Standing(before + 1, count + 1, present[kept - 1][0] if count >= kept else None)
        bisect.insort(present, (value, order))
        if left_at is not None:
            bisect.insort(leaving, (left_at, (value, order)))
    return [found[index] for index in range(len(entries))]


def cut_off_now(entries: Sequence[Entered], divisor: int) -> float | None:
    """Return the sort key that the next report has to stay below to continue, None if each would continue."""
    present = sorted(entry.value for entry in entries if entry.left_at is None)
    kept = places_kept(len(present) + 1, divisor)
    return present[kept - 1] if len(present) >= kept else None


def metric_of(value: float | None, *, smaller_is_better: bool) -> float | None:
    """Return the metric behind a sort key, None for a report without a comparable metric."""
    if value is None or value == LAST:
        return None
    return value if smaller_is_better else -value
