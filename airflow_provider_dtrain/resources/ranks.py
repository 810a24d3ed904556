"""Processes of gangs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class RankLine:
    """A process of a gang."""

    rank: int
    host: str
    slot: int | None
    pid: int | None
    #: Negative for a signal.
    exit_code: int | None
    exited: datetime | None
    #: First line of the error; None also for a user who may not read task logs.
    error: str | None
