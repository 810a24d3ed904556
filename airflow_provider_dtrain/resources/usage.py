"""Use of slots by day."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class UsageBy(StrEnum):
    """Owner to which slot hours are counted."""

    POOL = "pool"
    USER = "user"
    DAG = "dag"


@dataclass(frozen=True, kw_only=True)
class UsageRow:
    """Slot hours of one pool, user or DAG."""

    #: Empty: those of DAGs that the reader may not read, and by user also of gangs whose user is not known.
    name: str
    #: By day.
    slot_hours: list[float]
    total: float


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Slot hours of the last days, as far as the store keeps trials. A gang counts from its grant to its release."""

    by: UsageBy
    #: As 2026-03-10, in UTC, oldest first. The last one is not over.
    days: list[str]
    #: The largest total first, and the one without a name last.
    rows: list[UsageRow]
    #: Names that are added up in the last row, because there are too many.
    more: int
