"""Tiers of the store's time series: lengths of intervals and chunks, and the time for which each is kept.

A follower commits *slices*: all series of one host for some seconds. Roll-up turns the slices of a window into chunks
of tier 1, one for each metric, and the chunks of a tier into longer ones of the next tier, whose intervals are longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from airflow_provider_dtrain.core.series.points import Key, Points

#: Metric of the rows that hold all series of a host.
SLICE = ""
#: Seconds for which a window stays open after its last second, for ranks that write less often than the host.
LATE_S = 30
#: Default of ``[dtrain] telemetry_days``.
DAYS = 30


class Tier(IntEnum):
    """Length of an interval of a tier, in seconds."""

    #: Every second, for an hour.
    SECOND = 1
    #: Intervals of 10 s, for a day.
    TEN_SECONDS = 10
    #: Intervals of a minute, for ``[dtrain] telemetry_days``.
    MINUTE = 60
    #: Intervals of ten minutes, for as long: an answer about weeks and many GPUs reads a tenth.
    TEN_MINUTES = 600


@dataclass(frozen=True)
class Window:
    """Length of a tier's chunks, and time for which they are kept, in seconds.

    :param chunk_s: a chunk covers this much time, and begins at a multiple of it
    :param kept_s: None = as long as the option says
    """

    chunk_s: int
    kept_s: int | None


#: Chunks of 600, 360, 360 and 144 points. Each length is a multiple of the one before.
WINDOWS: Mapping[Tier, Window] = {
    Tier.SECOND: Window(600, 3600),
    Tier.TEN_SECONDS: Window(3600, 86_400),
    Tier.MINUTE: Window(21_600, None),
    Tier.TEN_MINUTES: Window(86_400, None),
}


def windows_of(start: int, end: int, chunk_s: int) -> Iterator[tuple[int, int]]:
    """Yield the windows of a tier that a span of time touches, as (start, end) in Unix seconds."""
    at = start - start % chunk_s
    while at < end:
        yield at, at + chunk_s
        at += chunk_s


def by_window(series: Mapping[Key, Points], chunk_s: int) -> dict[int, dict[Key, Points]]:
    """Return the series divided at the starts of windows: start of the window -> series."""
    found: dict[int, dict[Key, Points]] = {}
    for key, points in series.items():
        starts = sorted({at - at % chunk_s for at in points.at})
        for start in starts:
            part = points if len(starts) == 1 else points.between(start, start + chunk_s)
            found.setdefault(start, {})[key] = part
    return found


def tier_for(step_s: float) -> Tier:
    """Return the coarsest tier whose intervals are not longer than ``step_s``, tier 1 when there is none."""
    return max((tier for tier in Tier if tier <= step_s), default=Tier.SECOND)
