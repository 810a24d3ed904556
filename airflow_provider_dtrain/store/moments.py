"""Times that hosts report."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def moment(at: Any) -> datetime:
    """Return Unix seconds as a time; a number that is none becomes the epoch."""
    try:
        return datetime.fromtimestamp(float(at), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
