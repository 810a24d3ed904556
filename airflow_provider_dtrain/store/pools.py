"""Pools: named sets of hosts with one queue each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.external_jobs import OWN_BACKEND, JobPhase
from airflow_provider_dtrain.core.host_rates import HostCheckRule
from airflow_provider_dtrain.core.launch.containers import ContainerRules
from airflow_provider_dtrain.core.lifecycle.states import ALLOCATION_LIVE
from airflow_provider_dtrain.core.scheduler_facts import from_document
from airflow_provider_dtrain.core.scheduling.model import Fit, PoolOptions, PreemptionRule, SlotType
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, UserError
from airflow_provider_dtrain.store.database.rows import PoolRow
from airflow_provider_dtrain.store.database.tables import allocations, external_jobs, hosts, pools
from airflow_provider_dtrain.store.database.transactions import Database, bump, check_name, lock_pool, reads, writes
from airflow_provider_dtrain.store.records.trials import Pool


class Pools:
    """Pools and their options. The first host of a pool creates it."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def get(self, conn: Connection, name: str) -> Pool:
        """Return a pool.

        :raises NotFoundError: the pool does not exist; the message lists the existing ones
        """
        found = {row.name: row for row in conn.execute(sa.select(pools))}
        if name not in found:
            raise NotFoundError(f"There is no pool '{name}'. Pools: {', '.join(sorted(found)) or 'none yet'}.")
        return pool_of(found[name])

    @writes
    def set(
        self,
        conn: Connection,
        name: str,
        *,
        fit: Fit | None = None,
        allow_heterogeneous: bool | None = None,
        reservations: int | None = None,
        preemption: PreemptionRule | None = None,
        max_wait_s: float | None = None,
        protected_share: float | None = None,
        fresh_s: float | None = None,
        young_s: float | None = None,
        min_run_s: float | None = None,
        defaults: Mapping[str, Any] | None = None,
        containers: ContainerRules | None = None,
        host_check: HostCheckRule | None = None,
        host_check_every_s: float | None = None,
        by: str = "",
    ) -> Pool:
        """Return a pool after a change of its options. None leaves an option as it is.

        :class:`PoolOptions` documents the options.

        :raises NotFoundError: the pool does not exist
        :raises UserError: a value is out of range
        """
        row = lock_pool(conn, name)
        options = {
            "fit": fit, "allow_heterogeneous": allow_heterogeneous, "reservations": reservations,
            "preemption": preemption, "max_wait_s": max_wait_s, "protected_share": protected_share,
            "fresh_s": fresh_s, "young_s": young_s, "min_run_s": min_run_s,
        }  # fmt: skip
        values: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
        _check_options(name, replace(options_of(row), **values))
        if defaults is not None:
            values["defaults"] = defaults
        if containers is not None:
            values["containers"] = asdict(containers)
        if host_check is not None or host_check_every_s is not None:
            values.update(_host_check(row, host_check, host_check_every_s))
        if values:
            conn.execute(pools.update().where(pools.c.name == name).values(**values))
            bump(conn, name)
            self.db.audit(conn, by, "pool set", name, ", ".join(f"{key}={value}" for key, value in values.items()))
        return pool_of(conn.execute(sa.select(pools).where(pools.c.name == name)).one())

    @writes
    def set_scheduler(
        self,
        conn: Connection,
        name: str,
        *,
        backend: str,
        slot_type: SlotType,
        scheduler: Mapping[str, Any],
        by: str = "",
    ) -> Pool:
        """Return a pool whose slots an external scheduler gives out. It is created unless it exists.

        :param backend: name of the scheduler
        :param scheduler: its options, which were checked
        :raises ConflictError: the pool has hosts or requests of another backend
        """
        check_name("pool", name)
        values = {"name": name, "slot_type": slot_type, "backend": backend, "scheduler": scheduler}
        conn.execute(self.db.insert(pools).values(values).on_conflict_do_nothing(index_elements=["name"]))
        row = lock_pool(conn, name)
        if row.backend != backend or row.slot_type != slot_type:
            _refuse_used(conn, name)
        # Facts of other options or of another cluster would mislead.
        conn.execute(pools.update().where(pools.c.name == name).values(**values, scheduler_facts=None))
        bump(conn, name)
        self.db.audit(conn, by, "pool set", name, f"backend={backend}")
        return pool_of(conn.execute(sa.select(pools).where(pools.c.name == name)).one())

    @writes
    def note_facts(self, conn: Connection, name: str, facts: Mapping[str, Any]) -> None:
        """Store the facts of the scheduler of a pool.

        :param facts: of :func:`.scheduler_facts.to_document`
        """
        conn.execute(pools.update().where(pools.c.name == name).values(scheduler_facts=facts))
        bump(conn, name)

    @writes
    def remove(self, conn: Connection, name: str, *, by: str = "") -> None:
        """Remove an unused pool.

        :raises NotFoundError: the pool does not exist
        :raises ConflictError: the pool has hosts or requests
        """
        lock_pool(conn, name)
        _refuse_used(conn, name)
        conn.execute(pools.delete().where(pools.c.name == name))
        self.db.audit(conn, by, "pool removed", name)

    @reads
    def list(self, conn: Connection) -> list[Pool]:
        """Return all pools by name."""
        return [pool_of(row) for row in conn.execute(sa.select(pools).order_by(pools.c.name))]


def _refuse_used(conn: Connection, name: str) -> None:
    """Check that a pool has neither hosts nor requests nor jobs.

    :raises ConflictError: it has some; the message names them
    """
    members = sorted(
        conn.scalars(sa.select(hosts.c.name).where(hosts.c.pool == name, hosts.c.external_job_id.is_(None)))
    )
    live = (allocations.c.pool == name, allocations.c.state.in_(ALLOCATION_LIVE))
    waiting = conn.scalar(sa.select(sa.func.count()).select_from(allocations).where(*live))
    of_pool = (external_jobs.c.pool == name, external_jobs.c.phase != JobPhase.ENDED)
    columns = (external_jobs.c.number, external_jobs.c.name, allocations.c.trial_id)
    query = sa.select(*columns).join(allocations, allocations.c.id == external_jobs.c.allocation_id).where(*of_pool)
    if jobs := conn.execute(query.order_by(external_jobs.c.id)).all():
        trials = sorted({row.trial_id for row in jobs if row.trial_id is not None})
        kill = f"airflow dtrain trials kill {trials[0]}" if trials else f"airflow dtrain queue list --pool {name}"
        raise ConflictError(
            f"Pool '{name}' is in use: job {', '.join(row.number or row.name for row in jobs)}, {waiting} request(s). "
            + (f"They belong to trial {', '.join(map(str, trials))}. " if trials else "")
            + f"End them first: {kill}, or cancel the jobs with the scheduler's own command."
        )
    if members or waiting:
        raise ConflictError(
            f"Pool '{name}' is in use: hosts {', '.join(members) or 'none'}, {waiting} request(s). "
            "End the requests and remove the hosts first: airflow dtrain hosts remove"
        )
    # What is left of jobs that have ended.
    conn.execute(hosts.delete().where(hosts.c.pool == name))


def pool_of(row: PoolRow) -> Pool:
    """Return the record of a pool's row."""
    return Pool(
        name=row.name,
        slot_type=row.slot_type,
        options=options_of(row),
        backend=row.backend,
        scheduler=row.scheduler,
        facts=from_document(row.scheduler_facts) if row.scheduler_facts is not None else None,
        polled_at=row.polled_at,
        defaults=row.defaults,
        containers=_rules_of(row.containers),
        host_check=HostCheckRule(row.host_check),
        host_check_every_s=row.host_check_every_s,
        version=row.version,
    )


def _host_check(row: PoolRow, rule: HostCheckRule | None, every_s: float | None) -> dict[str, Any]:
    """Return the columns for the check of hosts before gangs.

    :raises UserError: the pool cannot check hosts, or the time is out of range
    """
    if row.backend != OWN_BACKEND:
        raise UserError(f"Pool '{row.name}' gets its hosts from {row.backend}, which checks its nodes itself.")
    if every_s is not None and not 0 <= every_s < math.inf:
        raise UserError(f"--check-every must be 0 s or more, got {every_s:g}.")
    values = {"host_check": rule, "host_check_every_s": every_s}
    return {name: value for name, value in values.items() if value is not None}


def _rules_of(document: Mapping[str, Any]) -> ContainerRules:
    lists = {name: tuple(value) for name, value in document.items() if name != "runtime"}
    return ContainerRules(runtime=document.get("runtime"), **lists)


def _check_options(name: str, options: PoolOptions) -> None:
    """Check the options of a pool.

    :raises UserError: an option is out of range; the message lists all of them
    """
    limits = (
        ("fit", options.fit in get_args(Fit), "one of " + ", ".join(get_args(Fit))),
        ("preemption", options.preemption in get_args(PreemptionRule), "one of " + ", ".join(get_args(PreemptionRule))),
        ("reservations", options.reservations >= 0, "0 or more"),
        ("max_wait_s", 0 < options.max_wait_s < math.inf, "above 0 s"),
        ("protected_share", 0 < options.protected_share <= 1, "above 0 and at most 1"),
        ("fresh_s", 0 <= options.fresh_s < math.inf, "0 s or more"),
        ("young_s", options.fresh_s <= options.young_s < math.inf, f"at least fresh_s, which is {options.fresh_s:g} s"),
        ("min_run_s", 0 <= options.min_run_s < math.inf, "0 s or more"),
    )
    wrong = [f"{key} must be {range_}, got {getattr(options, key)}" for key, is_right, range_ in limits if not is_right]
    if wrong:
        raise UserError(f"Pool '{name}' cannot use these options: {'; '.join(wrong)}.")


def options_of(row: PoolRow) -> PoolOptions:
    """Return the placement and queue options in a pool's row."""
    return PoolOptions(**{field.name: getattr(row, field.name) for field in fields(PoolOptions)})


def pool_for_host(db: Database, conn: Connection, name: str, slot_type: SlotType) -> None:
    """Create the pool of a new host, or check that it has the same slot type.

    :raises ConflictError: the pool holds slots of another type
    """
    values = {"name": name, "slot_type": slot_type}
    conn.execute(db.insert(pools).values(values).on_conflict_do_nothing(index_elements=["name"]))
    row = lock_pool(conn, name)
    if row.backend != OWN_BACKEND:
        raise ConflictError(
            f"The slots of pool '{name}' belong to {row.backend}, so it gets no hosts. Use another pool."
        )
    if row.slot_type != slot_type:
        has_hosts = conn.scalar(sa.select(hosts.c.name).where(hosts.c.pool == name).limit(1))
        if has_hosts is not None:
            raise ConflictError(
                f"Pool '{name}' has {row.slot_type} slots, but the host has {slot_type} slots. Use another pool."
            )
        conn.execute(pools.update().where(pools.c.name == name).values(slot_type=slot_type))
