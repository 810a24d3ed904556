"""Ranks and times in messages about failures. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

#: Most ranks that a message names.
MOST_RANKS = 8


def ranks_text(numbers: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 1 and 3``.

    :param numbers: at least one
    """
    found = sorted(numbers)
    if len(found) == 1:
        return f"rank {found[0]}"
    shown = [str(number) for number in found[:MOST_RANKS]]
    if len(found) > MOST_RANKS:
        return f"ranks {', '.join(shown)} and {len(found) - MOST_RANKS} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def clock(at: float) -> str:
    """Return a time of day in UTC.

    :param at: Unix seconds
    """
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"
