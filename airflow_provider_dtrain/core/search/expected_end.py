"""Expected end of an experiment, from the durations of its ended trials."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import fmean
from typing import Final

#: Fewer ended trials allow no estimate.
FEWEST: Final = 2
#: Estimates beyond this time are useless, and may exceed the range of a date.
LONGEST: Final = timedelta(days=3650)


def expected_end(
    now: datetime, ended_s: Sequence[float], running_s: Sequence[float], *, remaining: int
) -> datetime | None:
    """Return the expected end of an experiment, None without an estimate.

    Assumes that the trials to come take as long as the ended ones, and that as many trials run at a time as run now.

    :param ended_s: durations of ended trials, in seconds
    :param running_s: seconds for which each running trial has run
    :param remaining: planned trials that have not started
    """
    if len(ended_s) < FEWEST or not running_s or remaining < 0:
        return None
    # A host's clock may run backwards.
    mean_s = fmean(max(one, 0.0) for one in ended_s)
    left_s = [max(mean_s - max(one, 0.0), 0.0) for one in running_s]
    total_s = sum(left_s) + remaining * mean_s
    wait_s = max(total_s / len(running_s), max(left_s))
    return now + timedelta(seconds=wait_s) if wait_s <= LONGEST.total_seconds() else None
