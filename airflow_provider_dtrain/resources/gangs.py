"""Gangs of slots."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class GangLine:
    """A gang that waits or holds slots."""

    gang: int
    trial: int | None
    experiment: str
    attempt: int | None
    task: str
    dag_run: str
    pool: str
    slots: int
    priority: int
    state: str
    position: int | None
    hosts: str | None
    since: datetime
    expected: str | None
    paused: bool
    unfollowed_since: datetime | None
    reason: str | None
    state_words: str
