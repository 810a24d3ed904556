"""Times of the bytes of a rank's log, from the sizes that the log had at known times."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

_RECORD: Final = struct.Struct("<Qd")
#: Latest time that a record may have, seconds since 1970: the year 9999.
_LATEST_S: Final = 253_402_300_799.0
#: Largest offset of a log.
_SIZE_MOST: Final = 1 << 62

#: Size of a log in bytes, and the time in seconds since 1970 at which the supervisor found it. Both rise.
Sample = tuple[int, float]


def samples_of(data: bytes, clock_offset_s: float) -> list[Sample]:
    """Return the samples in a clock file of a host, which may have been changed by the rank.

    Sizes that do not rise are left out. A time before its predecessor's becomes this one.

    :param clock_offset_s: seconds by which the host's clock is ahead of this one
    """
    found: list[Sample] = []
    whole = len(data) // _RECORD.size * _RECORD.size
    for size, at_s in _RECORD.iter_unpack(data[:whole]):
        last_size, last_s = found[-1] if found else (0, 0.0)
        if math.isfinite(at_s) and last_size < size <= _SIZE_MOST and 0 < at_s - clock_offset_s <= _LATEST_S:
            found.append((size, max(last_s, at_s - clock_offset_s)))
    return found


def within(samples: Sequence[Sample], start: int, end: int) -> Sequence[Sample]:
    """Return the samples that bytes ``start`` to ``end`` need for their times."""
    return samples[bisect_right(samples, (start, math.inf)) : bisect_left(samples, (end, 0.0)) + 1]


def time_of(samples: Sequence[Sample], offset: int) -> datetime | None:
    """Return the time by which the byte at an offset was written. None: no sample has it."""
    index = bisect_right(samples, (offset, math.inf))
    return datetime.fromtimestamp(samples[index][1], UTC) if index < len(samples) else None


def offsets_between(
    samples: Sequence[Sample], since: datetime | None, until: datetime | None
) -> tuple[int, int] | None:
    """Return the offsets from which on, and before which, bytes were written in a span of time.

    :param since: None = from the beginning on
    :param until: None = to the end
    :return: None: no byte is known to be from this time
    """
    times = [at_s for _, at_s in samples]
    first = 0 if since is None else bisect_left(times, since.timestamp())
    last = len(samples) if until is None else bisect_right(times, until.timestamp())
    if first >= last:
        return None
    return (samples[first - 1][0] if first else 0), samples[last - 1][0]
