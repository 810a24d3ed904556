"""Facts about hosts in a period: held slots, states, checks, slow ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    experiments,
    gangs,
    host_rates,
    host_states,
    hosts,
    slots,
    stragglers,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.pages.cluster import IDS_PER_STATEMENT
from airflow_provider_dtrain.store.queue.slot_release import held_rows
from airflow_provider_dtrain.store.records.host_days import (
    CheckResult,
    HeldSlot,
    HolderWork,
    HostDayRows,
    SlowRank,
    StateSpan,
)
from airflow_provider_dtrain.store.stragglers import COUNTED_FOR

#: Most rows of released slots, and of each of the other facts, in an answer.
SLOTS_MOST: Final = 6000
FACTS_MOST: Final = 2000

_OF_HOSTS: sa.BindParameter[Any] = sa.bindparam("of_hosts", expanding=True)
_SINCE: sa.BindParameter[Any] = sa.bindparam("from_time", type_=allocation_slots.c.released_at.type)
_UNTIL: sa.BindParameter[Any] = sa.bindparam("to_time", type_=allocation_slots.c.released_at.type)

_HELD = sa.select(
    allocation_slots.c.host,
    allocation_slots.c.slot,
    allocation_slots.c.allocation_id,
    allocations.c.granted_at,
    allocation_slots.c.released_at,
).join(allocations, allocations.c.id == allocation_slots.c.allocation_id)
_NOW_HELD = _HELD.where(
    held_rows(), allocation_slots.c.slot >= 0, allocation_slots.c.host.in_(_OF_HOSTS), allocations.c.granted_at < _UNTIL
)
#: Joined with the slots, so that the index has each slot's rows by their time.
_OF_SLOT = sa.and_(allocation_slots.c.host == slots.c.host, allocation_slots.c.slot == slots.c.slot)
_RELEASED = (
    _HELD.join(slots, _OF_SLOT)
    .where(
        slots.c.host.in_(_OF_HOSTS), allocation_slots.c.released_at > _SINCE, allocation_slots.c.released_at <= _UNTIL
    )
    .where(allocations.c.granted_at < allocation_slots.c.released_at)
    .order_by(allocation_slots.c.released_at.desc())
    .limit(SLOTS_MOST + 1)
)
_NEXT = (
    sa.select(sa.func.min(allocation_slots.c.released_at))
    .where(_OF_SLOT, allocation_slots.c.released_at > _UNTIL)
    .correlate(slots)
    .scalar_subquery()
)
#: Slots that were held at the end of the period and released later.
_HELD_AT_END = _HELD.join(slots, _OF_SLOT).where(
    slots.c.host.in_(_OF_HOSTS), allocation_slots.c.released_at == _NEXT, allocations.c.granted_at < _UNTIL
)
_ATTEMPTS = (
    sa.select(
        allocations.c.id,
        gangs.c.dag_id,
        gangs.c.task_id,
        attempts.c.created_at,
        attempts.c.started_at,
        attempts.c.ended_at,
        trials.c.id,
        trials.c.number,
        trials.c.state,
        trials.c.dag_id,
        experiments.c.id,
        experiments.c.name,
    )
    .select_from(
        allocations.outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
        .outerjoin(attempts, attempts.c.allocation_id == allocations.c.id)
        .outerjoin(trials, trials.c.id == sa.func.coalesce(attempts.c.trial_id, allocations.c.trial_id))
        .outerjoin(experiments, experiments.c.id == trials.c.experiment_id)
    )
    .where(allocations.c.id.in_(sa.bindparam("of_allocations", expanding=True)))
    .order_by(attempts.c.id)
)
_FORMER = (
    sa.select(host_states.c.host, host_states.c.state, host_states.c.reason, host_states.c.since, host_states.c.until)
    .where(host_states.c.host.in_(_OF_HOSTS), host_states.c.until > _SINCE, host_states.c.since < _UNTIL)
    .order_by(host_states.c.until.desc())
    .limit(FACTS_MOST + 1)
)
#: A finding may name the other end of a transfer only.
_OWN_FINDING = sa.case((host_rates.c.names.in_(("host", "both")), host_rates.c.finding))
_CHECKS = (
    sa.select(host_rates.c.host, host_rates.c.at, _OWN_FINDING.label("finding"))
    .where(host_rates.c.host.in_(_OF_HOSTS), host_rates.c.at > _SINCE, host_rates.c.at < _UNTIL)
    .order_by(host_rates.c.at.desc(), host_rates.c.id)
    .limit(FACTS_MOST + 1)
)
_AS_PEER = (
    sa.select(host_rates.c.peer, host_rates.c.at, host_rates.c.finding)
    .where(host_rates.c.peer.in_(_OF_HOSTS), host_rates.c.names.in_(("peer", "both")))
    .where(host_rates.c.at > _SINCE, host_rates.c.at < _UNTIL)
    .order_by(host_rates.c.at.desc(), host_rates.c.id)
    .limit(FACTS_MOST)
)
_SLOW_UNTIL = sa.func.coalesce(stragglers.c.until, attempts.c.ended_at)
_SLOW = (
    sa.select(
        stragglers.c.host,
        stragglers.c.since,
        _SLOW_UNTIL,
        stragglers.c.rank,
        stragglers.c.ratio,
        stragglers.c.cost,
        stragglers.c.text,
        trials.c.id,
        trials.c.dag_id,
    )
    .join(attempts, attempts.c.id == stragglers.c.attempt_id)
    .join(trials, trials.c.id == attempts.c.trial_id)
    .where(stragglers.c.host.in_(_OF_HOSTS), stragglers.c.named_at > sa.bindparam("named_from", type_=_SINCE.type))
    .where(stragglers.c.since < _UNTIL, sa.or_(_SLOW_UNTIL.is_(None), _SLOW_UNTIL > _SINCE))
    .order_by(stragglers.c.named_at.desc())
    .limit(FACTS_MOST)
)


class HostDayRecords:
    """Reads the facts about hosts in a period."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def read(self, conn: Connection, names: Sequence[str], since: datetime, until: datetime) -> HostDayRows:
        """Return what happened on hosts after a time. Of more rows than fit, the latest ones are returned.

        :param names: unknown ones are left out
        :param since: aware, as ``until``
        """
        query = sa.select(hosts.c.name, hosts.c.pool, hosts.c.slot_count, *_PRESENT).where(hosts.c.name.in_(names))
        present = conn.execute(query.order_by(hosts.c.name)).all()
        values = {"of_hosts": [row.name for row in present], "from_time": since, "to_time": until}
        begins = [since]
        released = list(conn.execute(_RELEASED, values))
        if len(released) > SLOTS_MOST:
            # Slots that were released by then were not held after it.
            begins.append(released.pop().released_at)
        former = list(conn.execute(_FORMER, values))
        if len(former) > FACTS_MOST:
            begins.append(former.pop().until)
        checks = list(conn.execute(_CHECKS, values))
        if len(checks) > FACTS_MOST:
            begins.append(checks.pop().at)
        since = max(begins)
        others = (*conn.execute(_HELD_AT_END, values), *conn.execute(_NOW_HELD, values))
        held = [
            HeldSlot._make(row) for row in (*released, *others) if row.released_at is None or row.released_at > since
        ]
        now = [
            StateSpan(row.name, row.state, row.state_reason, row.state_since, None)
            for row in present
            if row.state_since is not None and row.state_since < until
        ]
        checks += conn.execute(_AS_PEER, values).all()
        slow = conn.execute(_SLOW, {**values, "from_time": since, "named_from": since - COUNTED_FOR})
        return HostDayRows(
            since=since,
            hosts={row.name: (row.pool, row.slot_count) for row in present},
            held=held,
            work=_work(conn, sorted({one.allocation_id for one in held})),
            states=[*(StateSpan._make(row) for row in former if row.until > since), *now],
            checks=[CheckResult._make(row) for row in checks if row.at > since],
            slow_ranks=[SlowRank._make(row) for row in slow],
        )


_PRESENT = (hosts.c.state, hosts.c.state_reason, hosts.c.state_since)


def _work(conn: Connection, allocation_ids: Sequence[int]) -> dict[int, list[HolderWork]]:
    found: dict[int, list[HolderWork]] = {}
    for start in range(0, len(allocation_ids), IDS_PER_STATEMENT):
        some = allocation_ids[start : start + IDS_PER_STATEMENT]
        for row in conn.execute(_ATTEMPTS, {"of_allocations": some}):
            found.setdefault(row[0], []).append(HolderWork._make(row))
    return found
