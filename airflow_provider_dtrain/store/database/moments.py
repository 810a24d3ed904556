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
