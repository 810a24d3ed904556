"""Timelines of trials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TimelineLine:
    """One thing that happened to a trial."""

    at: datetime
    #: End of an entry that lasts.
    until: datetime | None
    kind: str
    attempt: int | None
    host: str | None
    text: str
    detail: dict[str, Any]
