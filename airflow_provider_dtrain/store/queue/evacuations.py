"""Gangs on hosts that are to be empty by a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import HOLDING
from airflow_provider_dtrain.core.scheduling.evacuation import Drain, Resumption
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    configs,
    events,
    experiments,
    gangs,
    hosts,
    trials,
)
from airflow_provider_dtrain.store.queue.held_gangs import gang_text
from airflow_provider_dtrain.store.queue.slot_release import held_rows
from airflow_provider_dtrain.store.records.queue import Evacuation, GangOnHost

#: Kinds of events by which a rank shows that it uses the training library.
_JOINED = ("init", "first_step")
_ON_DRAINED = (
    allocation_slots.c.allocation_id == allocations.c.id,
    held_rows(),
    hosts.c.name == allocation_slots.c.host,
    hosts.c.drain_by.is_not(None),
)
#: A host of the gang is to be empty by a deadline. A held gang stays, because later tasks expect it.
IS_EVACUATED: sa.Label[bool] = sa.and_(
    allocations.c.trial_id.is_not(None), sa.exists().where(*_ON_DRAINED).correlate(allocations)
).label("is_evacuated")
_JOINED_EVENTS = sa.exists().where(events.c.attempt_id == attempts.c.id, events.c.kind.in_(_JOINED))
_RESUMPTION: Any = (
    allocations.c.preemptible,
    allocations.c.has_checkpoint,
    allocations.c.cost_s,
    _JOINED_EVENTS.correlate(attempts).label("uses_library"),
    configs.c.document["preemption_timeout"].label("timeout_s"),
)
_FACTS: sa.Select[Any] = (
    sa.select(*_RESUMPTION)
    .select_from(
        attempts.join(allocations, allocations.c.id == attempts.c.allocation_id)
        .join(trials, trials.c.id == attempts.c.trial_id)
        .join(configs, configs.c.config_id == trials.c.config_id)
    )
    .where(attempts.c.id == sa.bindparam("attempt"))
)
_DRAINS: sa.Select[Any] = (
    sa.select(hosts.c.name, hosts.c.drain_by, hosts.c.drain_kills, hosts.c.state_reason)
    .distinct()
    .select_from(attempts.join(allocations, allocations.c.id == attempts.c.allocation_id))
    .where(attempts.c.id == sa.bindparam("attempt"), *_ON_DRAINED)
    .order_by(hosts.c.drain_by, hosts.c.name)
)
_NEWEST = (
    sa.select(sa.func.max(attempts.c.id)).where(attempts.c.allocation_id == allocations.c.id).correlate(allocations)
)
_ON_HOST = (
    sa.select(
        allocations.c.id,
        allocations.c.state,
        allocations.c.granted_at,
        allocations.c.max_runtime_s,
        *_RESUMPTION,
        trials.c.id.label("trial_id"),
        trials.c.dag_id,
        experiments.c.name.label("experiment"),
        gangs.c.dag_id.label("gang_dag"),
        gangs.c.task_id.label("gang_task"),
    )
    .select_from(
        allocations.outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
        .outerjoin(attempts, attempts.c.id == sa.func.coalesce(gangs.c.attempt_id, _NEWEST.scalar_subquery()))
        .outerjoin(trials, trials.c.id == attempts.c.trial_id)
        .outerjoin(experiments, experiments.c.id == trials.c.experiment_id)
        .outerjoin(configs, configs.c.config_id == trials.c.config_id)
    )
    .where(
        allocations.c.state.in_(sorted(HOLDING)),
        allocations.c.id.in_(
            sa.select(allocation_slots.c.allocation_id).where(
                held_rows(), allocation_slots.c.host == sa.bindparam("of_host")
            )
        ),
    )
    .order_by(allocations.c.id)
)


def evacuation_of(conn: Connection, attempt_id: int) -> Evacuation:
    """Return the deadlines of the hosts on which an attempt's gang holds slots."""
    rows, facts = statements.read(conn, (_DRAINS, _FACTS), {"attempt": attempt_id})
    drains = tuple(
        Drain(host=row.name, by=row.drain_by, kills=bool(row.drain_kills), reason=row.state_reason or "")
        for row in rows
    )
    return Evacuation(drains=drains, gang=_resumption(facts[0]) if drains else Resumption())


def gangs_on(conn: Connection, host: str) -> Sequence[GangOnHost]:
    """Return the gangs that hold slots on a host, in the order of their requests."""
    return [_gang(row) for row in statements.rows(conn, _ON_HOST, {"of_host": host})]


def _gang(row: Any) -> GangOnHost:
    return GangOnHost(
        allocation_id=row.id,
        state=row.state,
        trial_id=row.trial_id,
        dag_id=row.gang_dag or row.dag_id or "",
        experiment=row.experiment or "",
        held_for=None if row.gang_dag is None else gang_text(row.gang_dag, row.gang_task),
        granted_at=row.granted_at,
        max_runtime_s=row.max_runtime_s,
        gang=_resumption(row),
    )


def _resumption(row: Any) -> Resumption:
    known = {} if row.timeout_s is None else {"timeout_s": float(row.timeout_s)}
    return Resumption(
        preemptible=row.preemptible,
        has_checkpoint=bool(row.has_checkpoint),
        uses_library=bool(row.uses_library),
        cost_s=row.cost_s,
        **known,
    )
