"""Check whether the hosts of a pool could ever serve a request."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.external_jobs import OWN_BACKEND
from airflow_provider_dtrain.core.scheduling.model import GangRequest, Unplaceable
from airflow_provider_dtrain.core.scheduling.placement import place
from airflow_provider_dtrain.store.database.rows import PoolRow
from airflow_provider_dtrain.store.pools import options_of
from airflow_provider_dtrain.store.queue.pass_snapshot import pool_machines


class Asked(Protocol):
    """Request for a gang."""

    @property
    def slots(self) -> int:
        """Slots requested."""

    @property
    def priority(self) -> int:
        """Priority, smaller first."""

    @property
    def is_single_host(self) -> bool:
        """All slots must be on one host."""


def never_reason(conn: Connection, pool: PoolRow, asked: Asked, *, without: Collection[str | None] = ()) -> str | None:
    """Return why the hosts of a pool can never serve a request, None if they can.

    The nodes of an external scheduler are not known here: it refuses a job when it is submitted.

    :param without: hosts that it does not use
    """
    if pool.backend != OWN_BACKEND:
        return None
    options = options_of(pool)
    request = GangRequest("new", asked.slots, asked.priority, asked.is_single_host)
    machines = [host for host in pool_machines(conn, pool.name) if host.name not in without]
    found = place(request, machines, allow_heterogeneous=options.allow_heterogeneous, fit=options.fit)
    return found.reason if isinstance(found, Unplaceable) and found.never else None
