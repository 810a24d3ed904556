"""The cluster: pools, hosts, slots and the gangs that hold them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import HOLDING
from airflow_provider_dtrain.resources.pools import PoolCounts
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    experiments,
    gangs,
    hosts,
    pools,
    slots,
    stragglers,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.pages.cluster_hosts import host_marks, slot_counts
from airflow_provider_dtrain.store.queue.held_gangs import gang_text
from airflow_provider_dtrain.store.queue.slot_release import held_rows
from airflow_provider_dtrain.store.records.pages import (
    ClusterState,
    HolderMark,
    HolderView,
    HostMark,
    SlotDevice,
)
from airflow_provider_dtrain.store.records.trials import TrialKey


class ClusterPage:
    """Slots of all hosts with their holders, by a fixed number of queries."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def version(self, conn: Connection) -> tuple[object, ...]:
        """Return a value that changes whenever hosts, slots or holders may have changed. Reads no slots and no hosts.

        Each change of a host, a slot or a grant raises the version of its pool. A holder can change its state, its
        trial and the sample of its trial without that. A slow rank is named without it too.
        """
        of_pools = sa.select(pools.c.name, pools.c.version, pools.c.passed_version).order_by(pools.c.name)
        return (
            conn.scalar(sa.select(sa.func.max(stragglers.c.id))),
            *map(tuple, conn.execute(of_pools)),
            *map(tuple, conn.execute(_MARKS)),
        )

    @reads
    def state(
        self, conn: Connection, pool: str | None = None, host: str | None = None, *, with_devices: bool = False
    ) -> ClusterState:
        """Return hosts, slots and holders of one moment.

        :param pool: only this pool; None = all
        :param host: only this host, and its pool counted as a whole; None = all
        :param with_devices: with the devices of the slots
        """
        shown = host_marks(conn, pool, host, self.db.now(), with_devices=with_devices)
        held = {one.allocation_id for mark in shown for one in mark.held}
        live = conn.execute(_LIVE_HOLDERS if pool is None else _LIVE_HOLDERS.where(allocations.c.pool == pool)).all()
        marks = [HolderMark._make(row) for row in live if row[0] in held]
        counts = _counts_of(shown) if host is None else _counts(conn, pool)
        return ClusterState(pools=_pools(conn, pool, counts), hosts=shown, holders=marks)

    @reads
    def holders(self, conn: Connection, allocation_ids: Sequence[int]) -> list[HolderView]:
        """Return gangs, those that have ended meanwhile included."""
        found: list[HolderView] = []
        for start in range(0, len(allocation_ids), IDS_PER_STATEMENT):
            some = allocation_ids[start : start + IDS_PER_STATEMENT]
            found += map(_holder, conn.execute(_HOLDERS, {"allocations": some}))
        return found

    @reads
    def pools(self, conn: Connection, pool: str | None = None) -> list[PoolCounts]:
        """Return the counts of pools by name."""
        return list(_pools(conn, pool, _counts(conn, pool)))

    @reads
    def devices(self, conn: Connection, names: Collection[str]) -> dict[tuple[str, str], int]:
        """Return the slots of GPUs by host and UUID."""
        query = sa.select(slots.c.host, slots.c.device, slots.c.slot).where(slots.c.device.is_not(None))
        return {(row.host, row.device): row.slot for row in conn.execute(query.where(slots.c.host.in_(list(names))))}

    @reads
    def slot_devices(self, conn: Connection, names: Collection[str]) -> list[SlotDevice]:
        """Return the slots of hosts with their devices and the memory of both, by host and slot."""
        columns = (slots.c.host, slots.c.slot, slots.c.device, slots.c.memory_bytes, hosts.c.facts)
        query = sa.select(*columns).join(hosts, hosts.c.name == slots.c.host).where(hosts.c.name.in_(list(names)))
        return [
            SlotDevice(
                host=row.host,
                slot=row.slot,
                device=row.device,
                memory_bytes=row.memory_bytes,
                host_memory_bytes=(row.facts or {}).get("memory_bytes"),
            )
            for row in conn.execute(query.order_by(slots.c.host, slots.c.slot))
        ]


#: Pools on whose index a query of live allocations runs.
_OF_POOLS = allocations.c.pool.in_(sa.select(pools.c.name))
_USER = sa.func.coalesce(gangs.c.attempt_id, 0)
#: The attempt that uses a held gang, and its trial.
_USERS = attempts.alias("users")
_OF_GANG = trials.alias("of_gang")
#: Number of the sample of the trial behind an allocation, from 1; 0: it has none.
_SAMPLE = sa.func.coalesce(
    *(sa.case((of.c.is_drawn, of.c.draw + 1), (of.c.id.is_not(None), 0)) for of in (trials, _OF_GANG)), 0
)
_WITH_TRIALS = (
    allocations.outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
    .outerjoin(_USERS, _USERS.c.id == gangs.c.attempt_id)
    .outerjoin(_OF_GANG, _OF_GANG.c.id == _USERS.c.trial_id)
    .outerjoin(trials, trials.c.id == allocations.c.trial_id)
)
#: In the order of the attributes of a mark.
_MARK = (
    allocations.c.id,
    allocations.c.state,
    allocations.c.token,
    allocations.c.slots,
    _USER.label("user"),
    _SAMPLE.label("sample"),
    sa.func.coalesce(gangs.c.dag_id, trials.c.dag_id).label("dag_id"),
)
IDS_PER_STATEMENT = 500


def _squares(of: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return the sum of squares, which differs between two sets of equal sum and size. It never overflows."""
    return sa.func.sum((of % 65_521) * (of % 65_521))


#: Live allocations by state: number, and sums that differ when other allocations are in a state.
_MARKS: sa.Select[Any] = (
    sa.select(
        allocations.c.pool,
        allocations.c.state,
        sa.func.count(),
        sa.func.sum(allocations.c.id),
        _squares(allocations.c.id),
        sa.func.sum(_USER),
        _squares(_USER),
        sa.func.sum(_SAMPLE),
    )
    .select_from(_WITH_TRIALS)
    .where(allocations.c.state.in_(("waiting", *sorted(HOLDING))), _OF_POOLS)
    .group_by(allocations.c.pool, allocations.c.state)
    .order_by(allocations.c.pool, allocations.c.state)
)
_HELD_SLOTS = (
    sa.select(allocation_slots.c.host, allocation_slots.c.slot)
    .where(held_rows(), allocation_slots.c.slot >= 0)
    .subquery()
)
_IS_HELD = _HELD_SLOTS.c.slot.is_not(None)
_IS_FREE = sa.and_(sa.not_(_IS_HELD), slots.c.enabled, slots.c.state == "ready", hosts.c.state == "ready")
_OF_HOSTS: sa.Select[Any] = sa.select(
    hosts.c.pool, sa.func.count(), sa.func.sum(sa.case((hosts.c.state == "lost", 1), else_=0))
).group_by(hosts.c.pool)
_OF_SLOTS: sa.Select[Any] = (
    sa.select(
        hosts.c.pool,
        sa.func.count(),
        sa.func.sum(sa.case((_IS_FREE, 1), else_=0)),
        sa.func.sum(sa.case((_IS_HELD, 1), else_=0)),
    )
    .select_from(
        hosts.join(slots, slots.c.host == hosts.c.name).outerjoin(
            _HELD_SLOTS, sa.and_(_HELD_SLOTS.c.host == slots.c.host, _HELD_SLOTS.c.slot == slots.c.slot)
        )
    )
    .group_by(hosts.c.pool)
)
_LIVE = (
    sa.select(allocations.c.pool, allocations.c.state, sa.func.count().label("all"))
    .where(allocations.c.state.in_(("waiting", *sorted(HOLDING))), _OF_POOLS)
    .group_by(allocations.c.pool, allocations.c.state)
)


@dataclass(slots=True)
class _Counts:
    hosts: int = 0
    slots: int = 0
    free: int = 0
    held: int = 0
    lost_hosts: int = 0


def _counts(conn: Connection, pool: str | None) -> dict[str, _Counts]:
    """Return the counts of pools. The database counts the slots."""
    only = sa.true() if pool is None else hosts.c.pool == pool
    found = {name: _Counts(hosts=number, lost_hosts=lost) for name, number, lost in conn.execute(_OF_HOSTS.where(only))}
    for name, number, free, held in conn.execute(_OF_SLOTS.where(only)):
        of = found.setdefault(name, _Counts())
        of.slots, of.free, of.held = number, free, held
    return found


def _counts_of(shown: Sequence[HostMark]) -> dict[str, _Counts]:
    """Return the same counts from all hosts of these pools. The database needs longer to count the slots again."""
    found: dict[str, _Counts] = {}
    for one in shown:
        of = found.setdefault(one.pool, _Counts())
        held, free = slot_counts(one)
        of.hosts += 1
        of.slots += one.slots
        of.held += held
        of.free += free
        of.lost_hosts += one.state == "lost"
    return found


def _pools(conn: Connection, pool: str | None, counts: Mapping[str, _Counts]) -> tuple[PoolCounts, ...]:
    only = (sa.true(), sa.true()) if pool is None else (allocations.c.pool == pool, pools.c.name == pool)
    gangs_of: dict[str, dict[bool, int]] = {}
    for row in conn.execute(_LIVE.where(only[0])):
        of = gangs_of.setdefault(row.pool, {True: 0, False: 0})
        of[row.state == "waiting"] += row.all
    found = []
    for row in conn.execute(
        sa.select(pools.c.name, pools.c.slot_type, pools.c.backend).where(only[1]).order_by(pools.c.name)
    ):
        live = gangs_of.get(row.name, {True: 0, False: 0})
        own = counts.get(row.name, _Counts())
        found.append(
            PoolCounts(
                name=row.name,
                slot_type=row.slot_type,
                backend=row.backend,
                **asdict(own),
                unavailable=own.slots - own.free - own.held,
                waiting=live[True],
                running=live[False],
            )
        )
    return tuple(found)


_LIVE_HOLDERS: sa.Select[Any] = (
    sa.select(*_MARK).select_from(_WITH_TRIALS).where(allocations.c.state.in_(sorted(HOLDING)), _OF_POOLS)
)
#: The trial behind an allocation, and for a held gang the trial that uses it.
_OWN = ("id", "number", "is_drawn", "config_id", "experiment_id")
_HOLDERS: sa.Select[Any] = (
    sa.select(
        *_MARK,
        allocations.c.granted_at,
        allocations.c.submitted_at,
        *(sa.func.coalesce(trials.c[name], _OF_GANG.c[name]).label(name if name != "id" else "trial") for name in _OWN),
        # As text: most names are known already, and need no values.
        sa.func.coalesce(sa.cast(trials.c.hparams, sa.Text), sa.cast(_OF_GANG.c.hparams, sa.Text)).label("hparams"),
        experiments.c.name.label("experiment"),
        *(sa.func.coalesce(gangs.c[name], trials.c[name]).label(name) for name in ("run_id", "task_id", "map_index")),
        gangs.c.allocation_id.label("gang"),
        sa.func.coalesce(trials.c.task_id, _OF_GANG.c.task_id).label("trial_task"),
        sa.func.coalesce(trials.c.map_index, _OF_GANG.c.map_index).label("trial_map_index"),
    )
    .select_from(_WITH_TRIALS.outerjoin(experiments, experiments.c.id == trials.c.experiment_id))
    .where(allocations.c.id.in_(sa.bindparam("allocations", expanding=True)))
)


def _holder(row: Any) -> HolderView:
    return HolderView(
        mark=HolderMark(*row[: len(_MARK)]),
        since=row.granted_at or row.submitted_at,
        key=TrialKey(dag_id=row.dag_id, run_id=row.run_id, task_id=row.task_id, map_index=row.map_index),
        trial_id=row.trial,
        trial_number=row.number,
        trial_task=(row.trial_task or "", -1 if row.trial_map_index is None else row.trial_map_index),
        hparams=row.hparams,
        is_drawn=bool(row.is_drawn),
        config_id=row.config_id,
        experiment_id=row.experiment_id,
        experiment=row.experiment if row.gang is None else gang_text(row.dag_id, row.task_id),
        is_held_gang=row.gang is not None,
    )
