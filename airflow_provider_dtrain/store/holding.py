"""Who holds slots, and how they become free: the only place that sets ``released_at``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core import lifecycle
from airflow_provider_dtrain.store.base import Base, bump
from airflow_provider_dtrain.store.records import Proof
from airflow_provider_dtrain.store.tables import allocation_slots, allocations, hosts


def held_rows() -> sa.ColumnElement[bool]:
    """Return the condition for rows whose slot is not free."""
    return allocation_slots.c.released_at.is_(None)


class Holding(Base):
    """Releases per allocation and host; every caller holds the lock of the pool."""

    def _release_host(
        self, conn: Connection, allocation_id: int, host: str | Sequence[str] | None, proof: Proof
    ) -> int:
        """Free an allocation's slots on one host, several, or all; return how many rows that were held.

        When none is held any more the allocation is released and draining hosts without work are drained.
        """
        where = [held_rows(), allocation_slots.c.allocation_id == allocation_id]
        if host is not None:
            where.append(allocation_slots.c.host.in_([host] if isinstance(host, str) else host))
        values = {"released_at": self._now(), "proof": proof}
        freed = conn.execute(allocation_slots.update().where(*where).values(**values)).rowcount
        row = conn.execute(sa.select(allocations).where(allocations.c.id == allocation_id)).one()
        left = sa.select(allocation_slots.c.id).where(held_rows(), allocation_slots.c.allocation_id == allocation_id)
        if conn.scalar(left.limit(1)) is None:
            self._set_allocation(conn, allocation_id, row.state, "released", ended_at=self._now())
        if freed:
            bump(conn, row.pool)
            self._settle_draining(conn, row.pool)
        return freed

    def _free_rows(self, conn: Connection, allocation_ids: Sequence[int], proof: Proof) -> None:
        """Free all slots of allocations under which no process was started."""
        where = (held_rows(), allocation_slots.c.allocation_id.in_(allocation_ids))
        conn.execute(allocation_slots.update().where(*where).values(released_at=self._now(), proof=proof))

    def _set_allocation(self, conn: Connection, allocation_id: int, old: str, new: str, **values: Any) -> bool:
        """Move an allocation from one state to another; return False when it is not in ``old`` any more.

        :raises IllegalTransitionError: the table of transitions does not allow it
        """
        if old == new:
            return True
        lifecycle.check("allocation", old, new)
        where = (allocations.c.id == allocation_id, allocations.c.state == old)
        return conn.execute(allocations.update().where(*where).values(state=new, **values)).rowcount == 1

    def _settle_draining(self, conn: Connection, pool: str) -> None:
        """Set draining hosts of the pool that nobody holds to drained."""
        held = sa.select(allocation_slots.c.id).where(held_rows(), allocation_slots.c.host == hosts.c.name).exists()
        where = (hosts.c.pool == pool, hosts.c.state == "draining", sa.not_(held))
        conn.execute(hosts.update().where(*where).values(state="drained", state_since=self._now()))
