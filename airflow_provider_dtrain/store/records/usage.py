"""Slots that gangs have held."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class HeldSlots:
    """A grant of slots."""

    pool: str
    slots: int
    since: datetime
    #: None: the gang still holds them.
    until: datetime | None
    #: None: neither its trial nor its held gang is stored any longer.
    dag_id: str | None
    #: Owner of the experiment; of a held gang the user of the API who started the DAG run; None: it is not known.
    user: str | None
