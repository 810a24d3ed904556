"""Logs of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


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


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of a rank's log."""

    #: Number of the line, from 0. None: lines before it are not known here.
    number: int | None
    #: Offset of its first byte; None: not known.
    offset: int | None
    #: Time by which it was written, on the clock of Airflow's machine; None: not known.
    at: datetime | None
    #: ``debug``, ``info``, ``warning`` or ``error``; None: the line names no level.
    level: str | None
    #: At most 4000 characters, without terminal escapes. Other control characters are visible, e.g. ``\\x00``.
    text: str
    #: Characters of the whole line.
    chars: int


@dataclass(frozen=True, kw_only=True)
class LogLines:
    """Lines of a rank's log in order, and the state of its attempt."""

    attempt: int
    rank: int
    #: Number of ranks, 0 while the attempt waits.
    ranks: int
    #: The ranks of the attempt have started, or had.
    is_started: bool
    #: Nothing follows in this attempt.
    is_over: bool
    state: str
    #: Number of the latest attempt.
    latest: int
    #: Why the attempt waits.
    reason: str | None
    #: Lines and bytes of the log that the store has from its beginning on.
    total: int
    copied_bytes: int
    #: The store has the whole log, and nothing follows.
    is_complete: bool
    #: Number of the first row.
    first: int
    rows: list[LogLine]
    #: Lines behind those that the store has from the beginning on, from the end of the log.
    tail: list[LogLine]


@dataclass(frozen=True, kw_only=True)
class LogMatches:
    """Lines of a rank's log that a search found, in order."""

    attempt: int
    rank: int
    #: Number of ranks, 0 while the attempt waits.
    ranks: int
    #: Nothing follows in this attempt.
    is_over: bool
    #: Lines of the log that the store has from its beginning on.
    total: int
    #: The store has the whole log, and nothing follows.
    is_complete: bool
    rows: list[LogLine]
    #: Number of the line at which the next request continues; None: everything was searched.
    next: int | None
    #: Why the search ended before the end of the log; None: it did not, or ``next`` continues it.
    problem: str | None
    #: Number of the latest attempt of the trial.
    latest: int
