"""The cluster: pools, hosts, slots and the gangs that hold them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import HOLDING
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    experiments,
    gangs,
    hosts,
    pools,
    slots,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.queue.held_gangs import gang_words
from airflow_provider_dtrain.store.queue.slot_release import held_rows
from airflow_provider_dtrain.store.records.pages import ClusterState, HolderView, HostCells, PoolCounts, SlotCell
from airflow_provider_dtrain.store.records.trials import TrialKey


class ClusterPage:
    """Slots of all hosts with their holders, by a fixed number of queries."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def state(self, conn: Connection, pool: str | None = None, host: str | None = None) -> ClusterState:
        """Return hosts, slots and holders of one moment.

        :param pool: only this pool; None = all
        :param host: only this host, whose pool is counted as a whole; None = all
        """
        found = _hosts(conn, pool)
        shown = found if host is None else tuple(one for one in found if one.name == host)
        held = {cell.allocation_id for one in shown for cell in one.cells if cell.allocation_id is not None}
        return ClusterState(pools=_counted(conn, pool, found), hosts=shown, holders=_holders(conn, held))

    @reads
    def pools(self, conn: Connection, pool: str | None = None) -> list[PoolCounts]:
        """Return the counts of pools by name."""
        return list(_counted(conn, pool, _hosts(conn, pool)))

    @reads
    def devices(self, conn: Connection, names: Collection[str]) -> dict[tuple[str, str], int]:
        """Return the slots of GPUs by host and UUID."""
        query = sa.select(slots.c.host, slots.c.device, slots.c.slot).where(slots.c.device.is_not(None))
        return {(row.host, row.device): row.slot for row in conn.execute(query.where(slots.c.host.in_(list(names))))}


def _hosts(conn: Connection, pool: str | None) -> tuple[HostCells, ...]:
    of_pool = sa.true() if pool is None else hosts.c.pool == pool
    columns = ("name", "pool", "state", "state_reason", "state_since", "slot_type")
    query = sa.select(*(hosts.c[name] for name in columns)).where(of_pool).order_by(hosts.c.name)
    rows = conn.execute(query).all()
    holders = {
        (row.host, row.slot): row.allocation_id
        for row in conn.execute(
            sa.select(allocation_slots.c.host, allocation_slots.c.slot, allocation_slots.c.allocation_id).where(
                held_rows(), allocation_slots.c.slot >= 0
            )
        ).all()
    }
    cells: dict[str, list[SlotCell]] = {row.name: [] for row in rows}
    devices: dict[str, str | None] = {}
    parts = ("host", "slot", "enabled", "state", "note", "device", "device_name")
    of_slots = sa.select(*(slots.c[name] for name in parts)).order_by(slots.c.host, slots.c.slot)
    for host, slot, enabled, state, note, device, device_name in conn.execute(of_slots).all():
        if host in cells:
            cells[host].append(SlotCell(enabled, state, note or "", device, holders.get((host, slot))))
            devices.setdefault(host, device_name)
    return tuple(
        HostCells(
            **{name: getattr(row, name) for name in columns},
            device_name=devices.get(row.name),
            cells=cells[row.name],
        )
        for row in rows
    )


def _counted(conn: Connection, pool: str | None, found: Collection[HostCells]) -> tuple[PoolCounts, ...]:
    of_pool = sa.true() if pool is None else pools.c.name == pool
    live = (
        sa.select(allocations.c.pool, allocations.c.state, sa.func.count().label("all"))
        .where(allocations.c.state.in_(("waiting", *HOLDING)))
        .group_by(allocations.c.pool, allocations.c.state)
    )
    gangs_of: dict[str, dict[bool, int]] = {}
    for row in conn.execute(live):
        of = gangs_of.setdefault(row.pool, {True: 0, False: 0})
        of[row.state == "waiting"] += row.all
    counts = []
    for row in conn.execute(sa.select(pools.c.name, pools.c.slot_type).where(of_pool).order_by(pools.c.name)):
        own = [one for one in found if one.pool == row.name]
        counted = gangs_of.get(row.name, {True: 0, False: 0})
        counts.append(
            PoolCounts(
                name=row.name,
                slot_type=row.slot_type,
                hosts=len(own),
                slots=sum(len(one.cells) for one in own),
                free=sum(is_free(one, cell) for one in own for cell in one.cells),
                held=sum(cell.allocation_id is not None for one in own for cell in one.cells),
                waiting=counted[True],
                running=counted[False],
            )
        )
    return tuple(counts)


def is_free(host: HostCells, cell: SlotCell) -> bool:
    """Return whether a pass may grant a slot now."""
    return host.state == "ready" and cell.allocation_id is None and cell.enabled and cell.state == "ready"


_USERS = attempts.alias("users")
_OF_GANG = trials.alias("of_gang")
#: The trial behind an allocation, and for a held gang the trial that uses it.
_OWN = ("id", "number", "hparams", "is_drawn", "config_id", "experiment_id")
_HOLDERS: sa.Select[Any] = (
    sa.select(
        allocations.c.id,
        allocations.c.state,
        allocations.c.slots,
        allocations.c.granted_at,
        allocations.c.submitted_at,
        *(sa.func.coalesce(trials.c[name], _OF_GANG.c[name]).label(name if name != "id" else "trial") for name in _OWN),
        experiments.c.name.label("experiment"),
        *(
            sa.func.coalesce(gangs.c[name], trials.c[name]).label(name)
            for name in ("dag_id", "run_id", "task_id", "map_index")
        ),
        gangs.c.allocation_id.label("gang"),
    )
    .select_from(
        allocations.outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
        .outerjoin(_USERS, _USERS.c.id == gangs.c.attempt_id)
        .outerjoin(_OF_GANG, _OF_GANG.c.id == _USERS.c.trial_id)
        .outerjoin(trials, trials.c.id == allocations.c.trial_id)
        .outerjoin(experiments, experiments.c.id == trials.c.experiment_id)
    )
    .where(allocations.c.state.in_(HOLDING))
)


def _holders(conn: Connection, held: Collection[int]) -> dict[int, HolderView]:
    """Return the gangs that hold slots, by allocation."""
    return {
        row.id: HolderView(
            allocation_id=row.id,
            state=row.state,
            slots=row.slots,
            since=row.granted_at or row.submitted_at,
            key=TrialKey(dag_id=row.dag_id, run_id=row.run_id, task_id=row.task_id, map_index=row.map_index),
            trial_id=row.trial,
            trial_number=row.number,
            hparams=row.hparams,
            is_drawn=bool(row.is_drawn),
            config_id=row.config_id,
            experiment_id=row.experiment_id,
            experiment=row.experiment if row.gang is None else gang_words(row.dag_id, row.task_id),
            is_held_gang=row.gang is not None,
        )
        for row in conn.execute(_HOLDERS).all()
        if row.id in held
    }
