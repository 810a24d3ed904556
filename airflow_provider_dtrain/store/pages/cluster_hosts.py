"""Hosts of the cluster page with their slots, from marks that cost little to read and to compare."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.resources.hosts import ClusterHost, Slot
from airflow_provider_dtrain.store.database.connections import aware
from airflow_provider_dtrain.store.database.tables import allocation_slots, external_jobs, hosts, slots
from airflow_provider_dtrain.store.queue.slot_release import held_rows
from airflow_provider_dtrain.store.records.pages import HeldRange, HostMark
from airflow_provider_dtrain.store.stragglers import counts_by_host

#: A slot that is enabled and ready, as most slots are.
FREE = Slot()
#: Slots of a host, and the name of their devices.
_Slots = tuple[tuple[Slot, ...], str | None]


def host_marks(
    conn: Connection, pool: str | None, host: str | None, now: datetime, *, with_devices: bool
) -> list[HostMark]:
    """Return the hosts by name.

    :param pool: only this pool; None = all
    :param host: only this host; None = all
    :param with_devices: with the devices of the slots, so that all slots are read one by one
    """
    query = _HOSTS if pool is None else _HOSTS.where(hosts.c.pool == pool)
    rows = conn.execute(query if host is None else query.where(hosts.c.name == host)).all()
    usual = {} if with_devices else _usual_slots(conn)
    unusual = [row[0] for row in rows if row[0] not in usual]
    read = _slots(conn, unusual if len(unusual) < len(rows) or host is not None else None, with_devices=with_devices)
    held = _held(conn, host)
    slow = counts_by_host(conn, now)
    marks = []
    for row in rows:
        name = row[0]
        if name in usual:
            number, device = usual[name]
            marks.append(HostMark._make((*row, device, number, (), held.get(name, ()), slow.get(name, 0))))
        else:
            cells, device = read.get(name, _NO_SLOTS)
            marks.append(HostMark._make((*row, device, len(cells), cells, held.get(name, ()), slow.get(name, 0))))
    return marks


def host_of(mark: HostMark) -> ClusterHost:
    """Return a host with its slots by index. Slots of one gang are one object if they are equal."""
    cells = list(mark.cells) or [FREE] * mark.slots
    for allocation_id, first, last in mark.held:
        shared = replace(FREE, allocation_id=allocation_id)
        for index in range(first, min(last + 1, mark.slots)):
            is_usual = cells[index] is FREE
            cells[index] = shared if is_usual else replace(cells[index], allocation_id=allocation_id)
    return ClusterHost(
        name=mark.name,
        pool=mark.pool,
        state=mark.state,
        state_reason=mark.state_reason,
        state_since=None if mark.state_since is None else aware(mark.state_since),
        drain_by=None if mark.drain_by is None else aware(mark.drain_by),
        slot_type=mark.slot_type,
        device_name=mark.device_name,
        job=mark.job,
        findings=mark.findings,
        slow_ranks=mark.slow_ranks,
        slots=cells,
    )


def slot_counts(mark: HostMark) -> tuple[int, int]:
    """Return how many slots of a host are held, and how many are free."""
    number = mark.slots
    if mark.cells:
        cells = host_of(mark).slots
        held = sum(cell.allocation_id is not None for cell in cells)
        free = sum(cell.allocation_id is None and cell.is_enabled and cell.state == "ready" for cell in cells)
    else:
        # A slot that the host does not have is not counted.
        held = sum(max(0, min(last + 1, number) - first) for _, first, last in mark.held)
        free = number - held
    return held, free if mark.state == "ready" else 0


def _usual_slots(conn: Connection) -> dict[str, tuple[int, str | None]]:
    """Return number and device of the slots of hosts whose slots are all enabled, ready and of one device.

    These are nearly all hosts. Their slots need not be read one by one.
    """
    unusual = set(conn.scalars(_UNUSUAL))
    return {
        host: (number, first)
        for host, number, named, first, last in conn.execute(_GROUPED).all()
        if host not in unusual and first == last and named in {0, number}
    }


def _slots(conn: Connection, names: Collection[str] | None, *, with_devices: bool) -> dict[str, _Slots]:
    """Return the slots of hosts by index, without their holders.

    :param names: of the hosts; None = all
    """
    if names is not None and not names:
        return {}
    query = _EACH if names is None else _EACH.where(slots.c.host.in_(names))
    found: dict[str, tuple[list[Slot], str | None]] = {}
    for host, enabled, state, note, device, device_name in conn.execute(query).all():
        cells, first = found.setdefault(host, ([], device_name))
        devices = (device, device_name if device_name != first else None) if with_devices else ()
        cells.append(Slot(state, enabled, note or "", None, *devices))
    return {host: (tuple(cells), device_name) for host, (cells, device_name) in found.items()}


def _held(conn: Connection, host: str | None) -> dict[str, tuple[HeldRange, ...]]:
    """Return the held slots by host. Most gangs hold neighbouring slots of a host, which come as one row.

    :param host: only this one; None = all
    """
    only = sa.true() if host is None else allocation_slots.c.host == host
    found: dict[str, list[HeldRange]] = {}
    scattered: set[int] = set()
    for name, allocation_id, first, last, count in conn.execute(_RANGES.where(only)).all():
        if count == last - first + 1:
            found.setdefault(name, []).append(HeldRange(allocation_id, first, last))
        else:
            scattered.add(allocation_id)
    if scattered:
        for name, allocation_id, index in conn.execute(_EACH_HELD.where(only)).all():
            if allocation_id in scattered:
                _add_slot(found.setdefault(name, []), HeldRange(allocation_id, index, index))
    return {name: tuple(of) for name, of in found.items()}


def _add_slot(held: list[HeldRange], one: HeldRange) -> None:
    """Add a slot to the ranges of its host, unless its gang has a range there."""
    if not any(of.allocation_id == one.allocation_id and of.first <= one.first <= of.last for of in held):
        held.append(one)


_NO_SLOTS: _Slots = ((), None)
_HOSTS: sa.Select[Any] = sa.select(
    hosts.c.name,
    hosts.c.pool,
    hosts.c.state,
    hosts.c.state_reason,
    # The conversion costs a microsecond per host, and most hosts have not changed.
    sa.type_coerce(hosts.c.state_since, sa.DateTime(timezone=True)),
    sa.type_coerce(hosts.c.drain_by, sa.DateTime(timezone=True)),
    hosts.c.slot_type,
    sa.select(external_jobs.c.number).where(external_jobs.c.id == hosts.c.external_job_id).scalar_subquery(),
    hosts.c.findings,
).order_by(hosts.c.name)
_IS_USUAL = sa.and_(slots.c.enabled, slots.c.state == "ready", sa.or_(slots.c.note.is_(None), slots.c.note == ""))
_UNUSUAL = sa.select(slots.c.host).where(sa.not_(_IS_USUAL)).distinct()
# One pass over the slots with few aggregates: each one costs a millisecond per 8,000 slots.
_NAME = slots.c.device_name
_GROUPED: sa.Select[Any] = sa.select(
    slots.c.host, sa.func.count(), sa.func.count(_NAME), sa.func.min(_NAME), sa.func.max(_NAME)
).group_by(slots.c.host)
_EACH: sa.Select[Any] = sa.select(
    *(slots.c[name] for name in ("host", "enabled", "state", "note", "device", "device_name"))
).order_by(slots.c.host, slots.c.slot)
_IS_HELD = sa.and_(held_rows(), allocation_slots.c.slot >= 0)
_PLACE = allocation_slots.c.slot
_RANGES: sa.Select[Any] = (
    sa.select(
        allocation_slots.c.host,
        allocation_slots.c.allocation_id,
        sa.func.min(_PLACE),
        sa.func.max(_PLACE),
        sa.func.count(),
    )
    .where(_IS_HELD)
    .group_by(allocation_slots.c.host, allocation_slots.c.allocation_id)
    .order_by(allocation_slots.c.host, allocation_slots.c.allocation_id)
)
_EACH_HELD: sa.Select[Any] = (
    sa.select(allocation_slots.c.host, allocation_slots.c.allocation_id, _PLACE)
    .where(_IS_HELD)
    .order_by(allocation_slots.c.host, _PLACE)
)
