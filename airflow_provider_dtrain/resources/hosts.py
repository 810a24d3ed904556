"""Hosts and their slots."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class HostLine:
    """A host."""

    name: str
    pool: str
    state: str
    slots: int
    held: int
    device: str | None
    #: Only for users who may edit connections.
    connection: str | None
    python: str | None
    torch: str | None
    reason: str | None
    #: Ids of other stores that use it.
    other_stores: list[str]


@dataclass(frozen=True, kw_only=True)
class SlotLine:
    """A slot and its holder."""

    host: str
    slot: int
    pool: str
    device: str
    device_name: str | None
    #: ``free``, ``held``, ``disabled``, ``stuck``, or the reason why it is not ready.
    state: str
    note: str | None
    trial: int | None
    experiment: str | None
    since: datetime | None
