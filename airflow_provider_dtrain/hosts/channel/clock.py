"""Clocks of a host relative to the clock here, measured by round trips."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

#: Round trips that are kept. The shortest one counts.
SAMPLES = 8
#: Seconds by which two clocks may drift apart while a sample is kept.
DRIFT_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One reading of a host's clocks."""

    #: The host's wall clock minus that of the control side, seconds. None: the host did not send it.
    offset_s: float | None
    #: The host's CLOCK_BOOTTIME minus Unix time here, seconds.
    boot_offset_s: float
    #: Seconds from the request to the answer. The reading was made at any moment between.
    round_trip_s: float

    @property
    def uncertainty_s(self) -> float:
        """Seconds by which the offsets may be wrong in either direction."""
        return self.round_trip_s / 2

    def contradicts(self, other: Sample) -> bool:
        """Return whether a clock was stepped between two samples."""
        apart = abs(self.boot_offset_s - other.boot_offset_s)
        if self.offset_s is not None and other.offset_s is not None:
            apart = max(apart, abs(self.offset_s - other.offset_s))
        return apart > self.uncertainty_s + other.uncertainty_s + DRIFT_S


class HostClock:
    """Offsets of one host's clocks by the shortest of the latest round trips.

    The reader thread adds samples, and any thread reads.
    """

    def __init__(self, wall_s: float | None, boottime_s: float, *, asked_s: float) -> None:
        self._samples: deque[Sample] = deque([_sample(wall_s, boottime_s, asked_s)], maxlen=SAMPLES)

    @property
    def best(self) -> Sample:
        """Sample of the shortest round trip."""
        return min(tuple(self._samples), key=lambda one: one.round_trip_s)

    def take(self, wall_s: float, boottime_s: float, *, asked_s: float) -> None:
        """Add a reading that has just arrived.

        :param asked_s: time.monotonic() when it was requested
        """
        sample = _sample(wall_s, boottime_s, asked_s)
        if sample.contradicts(self.best):
            self._samples.clear()
        self._samples.append(sample)


def _sample(wall_s: float | None, boottime_s: float, asked_s: float) -> Sample:
    round_trip_s = max(0.0, time.monotonic() - asked_s)
    middle_s = time.time() - round_trip_s / 2
    offset_s = None if wall_s is None else wall_s - middle_s
    return Sample(offset_s=offset_s, boot_offset_s=boottime_s - middle_s, round_trip_s=round_trip_s)
