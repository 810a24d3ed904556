"""Rows of the queue: each gang that waits or holds slots, with the attempt that waits for it or uses it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.lifecycle.states import ALLOCATION_LIVE, HOLDING
from airflow_provider_dtrain.core.scheduling.aging import Late, late_levels
from airflow_provider_dtrain.core.scheduling.model import PoolOptions
from airflow_provider_dtrain.core.scheduling.priority_tiers import (
    FRESH,
    OVERDUE,
    PROTECTED,
    REST,
    YOUNG,
    late_steps,
    level_of,
    wait_limit_s,
)
from airflow_provider_dtrain.resources.gangs import QueueClass
from airflow_provider_dtrain.store.database.rows import AllocationRow, record_of
from airflow_provider_dtrain.store.database.tables import (
    allocations,
    attempts,
    experiments,
    gangs,
    hosts,
    pools,
    trials,
)
from airflow_provider_dtrain.store.pools import options_of
from airflow_provider_dtrain.store.queue.accounting import held_s, waited_s
from airflow_provider_dtrain.store.queue.held_gangs import gang_text
from airflow_provider_dtrain.store.records.trials import HANDED_OVER, TaskView
from airflow_provider_dtrain.store.views import key_of, placements, seen_at, waits_because

#: Classes of the queue, best first.
CLASS_NAMES: Mapping[int, QueueClass] = {
    PROTECTED: "protected", FRESH: "fresh", YOUNG: "young", OVERDUE: "overdue", REST: "old",
}  # fmt: skip

_NEWEST = (
    sa.select(sa.func.max(attempts.c.id))
    .where(attempts.c.allocation_id == allocations.c.id)
    .correlate(allocations)
    .scalar_subquery()
)
#: Of a held gang: the attempt that uses it, None while none does.
_ATTEMPT = sa.case((gangs.c.allocation_id.is_not(None), gangs.c.attempt_id), else_=_NEWEST)
IS_GANG = gangs.c.allocation_id.is_not(None)
FROM_QUEUE = (
    allocations.outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
    .outerjoin(attempts, attempts.c.id == _ATTEMPT)
    .outerjoin(trials, trials.c.id == attempts.c.trial_id)
    .outerjoin(experiments, experiments.c.id == trials.c.experiment_id)
)
#: Column of the task that requested the gang.
TASK = {
    name: sa.case((IS_GANG, gangs.c[name]), else_=trials.c[name])
    for name in ("dag_id", "run_id", "task_id", "map_index", "max_tries")
}
#: Enough for :data:`IN_QUEUE`, without the newest attempt of each gang.
FROM_GANGS = allocations.outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
_LARGEST_HOSTS = (
    sa.select(hosts.c.pool, sa.func.max(hosts.c.slot_count)).where(hosts.c.state != "disabled").group_by(hosts.c.pool)
)
_HAS_ATTEMPT = (
    sa.select(attempts.c.id).where(attempts.c.allocation_id == allocations.c.id).correlate(allocations).exists()
)
#: Every gang that waits or holds slots. The pools make the index usable.
IN_QUEUE = sa.and_(
    allocations.c.state.in_(("waiting", *sorted(HOLDING))),
    allocations.c.pool.in_(sa.select(pools.c.name)),
    sa.or_(IS_GANG, _HAS_ATTEMPT),
)
#: A request that no set of its pool's hosts can serve, as of the last pass. Passes do not consider a paused one. The
#: state is no parameter, so that the databases choose the index of these requests.
NEVER_FITS = sa.and_(
    allocations.c.never_fits, allocations.c.state == sa.literal_column("'waiting'"), sa.not_(allocations.c.paused)
)
QUEUE: sa.Select[Any] = (
    sa.select(
        *(column for column in allocations.c if column.name not in ("trial_id", "never_fits")),
        NEVER_FITS.label("never_fits"),
        attempts.c.id.label("attempt_id"),
        attempts.c.number.label("attempt_number"),
        sa.func.coalesce(attempts.c.reason, "").label("attempt_reason"),
        attempts.c.state.label("attempt_state"),
        attempts.c.renewed_at.label("followed_at"),
        sa.func.coalesce(attempts.c.watcher, gangs.c.watcher).label("watcher"),
        trials.c.id.label("trial_id"),
        trials.c.number.label("trial_number"),
        trials.c.task_id.label("trial_task"),
        trials.c.map_index.label("trial_map_index"),
        trials.c.experiment_id,
        trials.c.hparams,
        trials.c.is_drawn,
        trials.c.config_id,
        experiments.c.name.label("experiment"),
        IS_GANG.label("is_gang"),
        *(column.label(name) for name, column in TASK.items()),
    )
    .select_from(FROM_QUEUE)
    .where(IN_QUEUE)
)
#: Ids of gangs, each with the number of all that match. Select it from :data:`FROM_QUEUE` or :data:`FROM_GANGS`.
QUEUE_IDS: sa.Select[Any] = sa.select(allocations.c.id, sa.func.count().over().label("total")).where(IN_QUEUE)
QUEUE_COUNT = sa.select(sa.func.count()).where(IN_QUEUE)


def task_views(conn: Connection, rows: Sequence[Row[Any]]) -> list[TaskView]:
    """Return the gangs of rows of :data:`QUEUE`, in their order."""
    placed = placements(conn, {row.id: row.token for row in rows if row.token is not None})
    places = _places(conn, {row.pool for row in rows if row.state == "waiting" and not row.position})
    views = []
    for row in rows:
        place_of = None
        # Why the attempt went back to the queue, until the gang is used.
        reason = "" if row.state == "granted" else row.attempt_reason
        if row.state == "waiting":
            place_of = row.position or places.get(row.id, 1)
            reason = waits_because(conn, row.id, row.reason, row.renewed_at, row)
        hosts_of = {host: found[0] for host, found in placed.get(row.id, {}).items()}
        views.append(_task_view(row, hosts_of, place_of, reason))
    return views


def _places(conn: Connection, of_pools: Collection[str]) -> dict[int, int]:
    """Return the places of waiting requests that no pass has considered yet, from 1 in each pool."""
    places = {}
    for pool in of_pools:
        waiting = sa.select(allocations.c.id).where(allocations.c.pool == pool, allocations.c.state == "waiting")
        ordered = conn.scalars(waiting.order_by(allocations.c.priority, allocations.c.sequence))
        places.update({allocation_id: place for place, allocation_id in enumerate(ordered, 1)})
    return places


def _task_view(row: Row[Any], placement: dict[str, tuple[int, ...]], place_of: int | None, reason: str) -> TaskView:
    waits = place_of is not None
    return record_of(
        TaskView,
        row,
        allocation_id=row.id,
        experiment=gang_text(row.dag_id, row.task_id) if row.is_gang else row.experiment,
        key=key_of(row),
        placement=placement,
        reason=reason,
        position=place_of,
        since=row.submitted_at if waits else row.granted_at,
        expected=row.expected if waits else "",
        seen_at=seen_at("waiting" if waits else row.attempt_state, row.followed_at, row.renewed_at),
        is_handed_over=row.watcher == HANDED_OVER,
    )


def levels(conn: Connection, now: datetime, rows: Sequence[AllocationRow]) -> dict[int, QueueClass]:
    """Return the classes of gangs by allocation. Reads each pool once, however many gangs it has."""
    options = {row.name: options_of(row) for row in conn.execute(sa.select(pools))}
    largest = {name: int(slots) for name, slots in conn.execute(_LARGEST_HOSTS)}
    late: dict[tuple[str, int], dict[str, int]] = {}
    found = {}
    for row in rows:
        own, largest_host = options.get(row.pool, PoolOptions()), largest.get(row.pool, 0)
        of = row.pool, row.priority
        if _late(row, now, own, largest_host) is not None and of not in late:
            late[of] = _late_levels(conn, now, *of, own, largest_host)
        level = level_of(row.slots, held_s(row, now), late.get(of, {}).get(str(row.id)), own)
        found[row.id] = CLASS_NAMES[max(level, PROTECTED)]
    return found


def _late(row: AllocationRow, now: datetime, options: PoolOptions, largest_host: int) -> Late | None:
    limit_s = wait_limit_s(row.slots, largest_host, options)
    steps = late_steps(waited_s(row, row.granted_at or now), limit_s, options)
    return None if steps is None else Late(-steps, -row.slots, row.sequence, str(row.id))


def _late_levels(
    conn: Connection, now: datetime, pool: str, priority: int, options: PoolOptions, largest_host: int
) -> dict[str, int]:
    of = (allocations.c.pool == pool, allocations.c.priority == priority)
    live = conn.execute(sa.select(allocations).where(*of, allocations.c.state.in_(ALLOCATION_LIVE))).all()
    counts = [one for one in live if one.state != "waiting" or one.eligible_since is not None]
    late = [entry for one in counts if (entry := _late(one, now, options, largest_host)) is not None]
    usable = sa.select(sa.func.coalesce(sa.func.sum(hosts.c.slot_count), 0))
    slots = conn.scalar(usable.where(hosts.c.pool == pool, hosts.c.state != "disabled"))
    return late_levels(sorted(late), int(slots or 0), options)
