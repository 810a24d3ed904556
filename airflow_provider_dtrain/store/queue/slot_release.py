"""Release of slots: the only place that sets ``released_at``. Callers hold the lock of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.connections import UtcDateTime
from airflow_provider_dtrain.store.database.tables import allocation_slots, allocations, attempts, host_states, hosts
from airflow_provider_dtrain.store.database.transactions import bump
from airflow_provider_dtrain.store.records.trials import Proof


def held_rows() -> sa.ColumnElement[bool]:
    """Return the condition for rows whose slot is not free."""
    return allocation_slots.c.released_at.is_(None)


_GANG: sa.BindParameter[int] = sa.bindparam("gang")
_FREE_ALL = (
    allocation_slots.update()
    .where(held_rows(), allocation_slots.c.allocation_id == _GANG)
    .values(released_at=sa.bindparam("now"), proof=sa.bindparam("by_proof"))
)
_FREE_HOST = _FREE_ALL.where(allocation_slots.c.host == sa.bindparam("of_host"))
ALLOCATION = sa.select(allocations).where(allocations.c.id == _GANG)
_STILL_HELD = sa.select(allocation_slots.c.id).where(held_rows(), allocation_slots.c.allocation_id == _GANG).limit(1)
ALLOCATION_OF_ATTEMPT = (
    sa.select(attempts.c.allocation_id).where(attempts.c.id == sa.bindparam("attempt_id")).scalar_subquery()
)
#: The hosts of an attempt's gang, including released ones, with the number of held slots of each.
HOSTS_OF_ATTEMPT = (
    sa.select(allocation_slots.c.host, sa.func.count(allocation_slots.c.id).filter(held_rows()).label("held"))
    .where(allocation_slots.c.allocation_id == ALLOCATION_OF_ATTEMPT)
    .group_by(allocation_slots.c.host)
)
_EMPTY = sa.select(hosts.c.name).where(
    hosts.c.pool == sa.bindparam("of_pool"),
    hosts.c.state == "draining",
    ~sa.select(allocation_slots.c.id).where(held_rows(), allocation_slots.c.host == hosts.c.name).exists(),
)


def release_host(
    conn: Connection, now: datetime, allocation_id: int, host: str | Sequence[str] | None, proof: Proof
) -> int:
    """Free an allocation's slots on one host, several or all, and return how many were held.

    When the last slot is free, the allocation is released. Draining hosts without held slots become drained.
    """
    values = {"gang": allocation_id, "now": now, "by_proof": proof}
    if host is None:
        freed = conn.execute(_FREE_ALL, values).rowcount
    else:
        names = [host] if isinstance(host, str) else host
        freed = sum(conn.execute(_FREE_HOST, {**values, "of_host": name}).rowcount for name in names)
    found, left = statements.read(conn, (ALLOCATION, _STILL_HELD), values)
    if not left:
        move_allocation(conn, allocation_id, found[0].state, "released", ended_at=now)
    if freed:
        bump(conn, found[0].pool)
        settle_draining(conn, now, found[0].pool)
    return freed


def free_rows(conn: Connection, now: datetime, allocation_id: int, proof: Proof) -> None:
    """Free all slots of an allocation under which no process was started."""
    conn.execute(_FREE_ALL, {"gang": allocation_id, "now": now, "by_proof": proof})


def set_allocation(conn: Connection, allocation_id: int, old: str, new: str, **values: Any) -> bool:
    """Move an allocation to another state, and return False when it is no longer in ``old``.

    :raises IllegalTransitionError: the table of transitions does not allow it
    """
    if old == new:
        return True
    states.check("allocation", old, new)
    return statements.update(conn, allocations, allocation_id, old, state=new, **values)


def move_allocation(conn: Connection, allocation_id: int, old: str, new: str, **values: Any) -> None:
    """Move an allocation if it is still in ``old``, without a check of the result.

    This is for allocations that no other transaction can move meanwhile, or that may stay where they are then.

    :raises IllegalTransitionError: the table of transitions does not allow it
    """
    if old != new:
        states.check("allocation", old, new)
        statements.update(conn, allocations, allocation_id, old, state=new, **values)


def settle_draining(conn: Connection, now: datetime, pool: str) -> None:
    """Set draining hosts of the pool without held slots to drained."""
    for name in conn.scalars(_EMPTY, {"of_pool": pool}).all():
        move_host(conn, now, name, HostState.DRAINED)


def move_host(conn: Connection, now: datetime, name: str, state: HostState) -> None:
    """Change the state of a host, and keep the former one with its time."""
    is_host = hosts.c.name == name
    former = (hosts.c.name, hosts.c.state, hosts.c.state_reason, hosts.c.state_since, sa.literal(now, UtcDateTime()))
    was = sa.select(*former).where(is_host, hosts.c.state_since < now)
    conn.execute(host_states.insert().from_select(("host", "state", "reason", "since", "until"), was))
    conn.execute(hosts.update().where(is_host).values(state=state, state_since=now))


def held_hosts(conn: Connection, allocation_id: int, *, released: bool = False) -> set[str]:
    """Return the hosts on which an allocation holds slots.

    :param released: True: also the hosts that are released already
    """
    where = [allocation_slots.c.allocation_id == allocation_id, *(() if released else (held_rows(),))]
    return set(conn.scalars(sa.select(allocation_slots.c.host).where(*where)))
