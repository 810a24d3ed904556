"""Tiers of the store's time series: lengths of intervals and chunks, and the time for which each is kept.

A follower commits *slices*: all series of one host for some seconds. Compaction merges the slices of a host into chunks
of every tier, one for each metric, so each tier has all points up to the last compaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_dtrain.core.series.points import Key, Points

#: Metric and interval of the rows that hold all series of a host as they were measured.
SLICE, SLICE_S = "", 0


@dataclass(frozen=True)
class Tier:
    """Intervals and chunks of one length, in seconds.

    :param step_s: length of an interval
    :param chunk_s: a chunk covers this much time, and begins at a multiple of it
    :param kept_s: None = as long as ``[dtrain] telemetry_days`` says
    """

    step_s: int
    chunk_s: int
    kept_s: int | None


#: Finest first. Chunks have 600, 360, 360 and 144 points. With intervals of ten minutes, an answer about weeks and many
#: GPUs reads a tenth.
TIERS = (Tier(1, 600, 3600), Tier(10, 3600, 86_400), Tier(60, 21_600, None), Tier(600, 86_400, None))


def by_window(series: Mapping[Key, Points], chunk_s: int) -> dict[int, dict[Key, Points]]:
    """Return the series divided at the starts of windows: start of the window -> series."""
    found: dict[int, dict[Key, Points]] = {}
    for key, points in series.items():
        starts = sorted({at - at % chunk_s for at in points.at})
        for start in starts:
            part = points if len(starts) == 1 else points.between(start, start + chunk_s)
            found.setdefault(start, {})[key] = part
    return found


def tier_for(step_s: float, age_s: float) -> Tier:
    """Return the coarsest tier whose intervals are not longer than ``step_s``, else the finest one.

    :param age_s: age of the oldest point that is wanted, in seconds; a tier that has lost it is left out
    """
    kept = [tier for tier in TIERS if tier.kept_s is None or age_s <= tier.kept_s]
    return next((tier for tier in reversed(kept) if tier.step_s <= step_s), kept[0])
