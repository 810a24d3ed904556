"""Times that hosts report."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def moment(at: Any) -> datetime:
    """Return Unix seconds as a time, 1970-01-01 for an invalid value."""
    try:
        return datetime.fromtimestamp(float(at), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def store_moment(at: Any, offset_s: float) -> datetime:
    """Return Unix seconds by the clock of a host as a time by the clock here, 1970-01-01 for an invalid value.

    :param offset_s: seconds by which the host's clock is ahead of this one
    """
    try:
        return moment(float(at) - offset_s)
    except (TypeError, ValueError, OverflowError):
        return moment(None)
