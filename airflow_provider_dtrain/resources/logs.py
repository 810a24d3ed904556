"""Logs of ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LogPiece:
    """Part of a rank's log, and the state of its attempt."""

    attempt: int
    #: The ranks of the attempt have started, or had.
    is_started: bool
    #: Nothing follows in this attempt.
    is_over: bool
    #: State of the attempt.
    state: str
    #: Number of the latest attempt.
    latest: int
    #: Why the attempt waits.
    reason: str | None
    #: Number of ranks, 0 while it waits.
    ranks: int
    #: Offset of its first byte; None: the store does not know it, and the content is the end of the log.
    start: int | None
    #: Bytes in base64.
    content: str
