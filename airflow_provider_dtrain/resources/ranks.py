"""Processes of gangs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One process of a gang."""

    rank: int
    host: str
    local_rank: int
    slot: int | None
    pid: int | None
    #: Negative for a signal; None: it runs, or its end is unknown.
    exit_code: int | None
    exited_at: datetime | None
    #: Message of the training code; None also for a user who may not read task logs.
    error: str | None
    #: The supervisor ended it with a signal.
    sent_signal: bool
    #: Last bytes of its log, at most 64 KiB; empty unless they were requested.
    log_tail: str


@dataclass(frozen=True, kw_only=True)
class AttemptRanks:
    """The processes of one attempt."""

    #: Number of the attempt.
    attempt: int
    rows: list[RankRow]
