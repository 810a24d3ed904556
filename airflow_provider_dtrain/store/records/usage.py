"""Slots that gangs have held."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HeldSlots:
    """Grants of a DAG, a user and a pool that began on one day and ended on one day, added up.

    Times are seconds since the begin of a period, each times the slots of its grant. A grant from before the period
    begins with it, and one that is still held ends now.
    """

    pool: str
    #: None: neither the trials nor the held gangs are stored any longer.
    dag_id: str | None
    #: Owner of the experiment; of a held gang the user of the API who started the DAG run; None: it is not known.
    user: str | None
    #: Index of the day of the grants and of the releases, from 0.
    first: int
    last: int
    slots: int
    since_s: float
    until_s: float
