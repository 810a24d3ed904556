"""Host checks: slots that a check holds, its results, and the sentences about slow hosts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.host_rates import PAST_MOST, HostFinding, HostRate, RateMetric, in_order
from airflow_provider_dtrain.core.lifecycle.timing import CHECK_HOLD_S
from airflow_provider_dtrain.errors import GangEndedError, NotFoundError, NotNowError
from airflow_provider_dtrain.store.database.rows import columns_of, record_of
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    gangs,
    host_rates,
    hosts,
    pools,
    slots,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import Database, bump, lock_pool, reads, writes
from airflow_provider_dtrain.store.queue.feasibility import never_reason
from airflow_provider_dtrain.store.queue.held_gangs import end_held_gang, gang_text
from airflow_provider_dtrain.store.queue.pass_writes import raise_token
from airflow_provider_dtrain.store.queue.slot_release import held_rows
from airflow_provider_dtrain.store.records.trials import HeldForCheck

#: Values of ``dag_id`` and ``task_id`` of the gang that a check holds.
CHECK_DAG = "airflow dtrain hosts check"
#: States of a host whose slots a check may hold.
_CHECKABLE = ("ready", "draining", "drained")


class HostRates:
    """Results of host checks, and the gangs that hold slots for a check."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def hold(self, conn: Connection, names: Sequence[str], *, by: str) -> list[HeldForCheck]:
        """Hold all usable slots of hosts, one gang per host, or none at all.

        A held gang ends by itself after :data:`.CHECK_HOLD_S` without :meth:`renew`.

        :param by: the user
        :raises NotFoundError: a host does not exist
        :raises NotNowError: slots are in use, or a host cannot be used
        """
        rows = {row.name: row for row in conn.execute(sa.select(hosts).where(hosts.c.name.in_(names)))}
        if missing := [name for name in names if name not in rows]:
            raise NotFoundError(f"There is no host '{missing[0]}'.")
        for pool in sorted({row.pool for row in rows.values()}):
            lock_pool(conn, pool)
        _refuse_used(conn, names)
        run_id = uuid.uuid4().hex
        found = [self._hold_host(conn, name, run_id, by) for name in names]
        self.db.audit(conn, by, "hosts check", ", ".join(names))
        return found

    def _hold_host(self, conn: Connection, name: str, run_id: str, by: str) -> HeldForCheck:
        host = conn.execute(sa.select(hosts).where(hosts.c.name == name)).one()
        if host.state not in _CHECKABLE:
            raise NotNowError(f"Host '{name}' is {host.state} ({host.state_reason or 'no reason given'}).")
        usable = (slots.c.host == name, slots.c.enabled, slots.c.state == "ready")
        devices = {
            row.slot: row.device
            for row in conn.execute(sa.select(slots.c.slot, slots.c.device).where(*usable).order_by(slots.c.slot))
        }
        if not devices:
            raise NotNowError(f"Host '{name}' has no slot that is enabled and ready.")
        now, token = self.db.now(), raise_token(conn, 1)
        times = dict.fromkeys(("submitted_at", "requested_at", "renewed_at", "granted_at"), now)
        query = allocations.insert().values(
            pool=host.pool, slots=len(devices), is_single_host=True, preemptible=False, state="running", token=token,
            **times,
        )  # fmt: skip
        allocation_id = int(conn.scalar(query.returning(allocations.c.id)) or 0)
        place = {"allocation_id": allocation_id, "token": token, "host": name}
        conn.execute(allocation_slots.insert(), [{**place, "slot": index} for index in devices])
        own = {"dag_id": CHECK_DAG, "run_id": run_id, "task_id": name, "watcher": by}
        until = now + timedelta(seconds=CHECK_HOLD_S)
        conn.execute(
            gangs.insert().values(allocation_id=allocation_id, **own, hold_for_s=CHECK_HOLD_S, held_until=until)
        )
        bump(conn, host.pool)
        return HeldForCheck(host=name, allocation_id=allocation_id, token=token, devices=devices)

    @writes
    def renew(self, conn: Connection, allocation_ids: Sequence[int]) -> None:
        """Hold the slots of a check for longer.

        :raises GangEndedError: the check took too long, or a user ended it, and its slots were freed
        """
        until = self.db.now() + timedelta(seconds=CHECK_HOLD_S)
        live = (gangs.c.allocation_id.in_(allocation_ids), gangs.c.ended_because.is_(None))
        if conn.execute(gangs.update().where(*live).values(held_until=until)).rowcount != len(allocation_ids):
            raise GangEndedError("The slots of the check were released meanwhile.")

    @writes
    def release(self, conn: Connection, allocation_ids: Sequence[int]) -> list[str]:
        """Free the slots of a check, and return the pools. Repeatable."""
        of_check = sa.select(allocations.c.pool).where(allocations.c.id.in_(allocation_ids)).distinct()
        freed = sorted(conn.scalars(of_check))
        for pool in freed:
            lock_pool(conn, pool)
        for row in conn.execute(sa.select(allocations).where(allocations.c.id.in_(allocation_ids))).all():
            end_held_gang(conn, self.db.now(), row, "the check of the host has ended")
        return freed

    @writes
    def record(self, conn: Connection, rates: Sequence[HostRate], found: Sequence[HostFinding]) -> None:
        """Store the results of a check, and update the sentences about its hosts.

        A host that was removed meanwhile is left out.

        :param found: :func:`.findings` of the results
        """
        now = self.db.now()
        names = {rate.host for rate in rates} | {rate.peer for rate in rates if rate.peer is not None}
        query = sa.select(hosts.c.name, hosts.c.pool).where(hosts.c.name.in_(names)).order_by(hosts.c.pool)
        known = {row.name: row.pool for row in conn.execute(query)}
        for pool in dict.fromkeys(known.values()):
            lock_pool(conn, pool)
            bump(conn, pool)
        named = {rate.subject: finding for finding in found for rate in finding.rates}
        rows = [
            {**columns_of(rate, host_rates), **_named(rate, named.get(rate.subject)), "at": now}
            for rate in rates
            if rate.host in known
        ]
        if rows:
            conn.execute(host_rates.insert(), rows)
        texts = _texts(conn, known)
        for host in known:
            values = {"findings": "\n".join(text for _, text, _ in texts.get(host, ()))}
            conn.execute(hosts.update().where(hosts.c.name == host).values(**values))

    @reads
    def latest(self, conn: Connection, name: str) -> list[tuple[HostRate, str | None]]:
        """Return the latest result of each device, disk and link of a host, with the sentence that names it."""
        own = host_rates.c
        newest = sa.select(sa.func.max(own.id)).where(sa.or_(own.host == name, own.peer == name))
        newest = newest.group_by(own.host, own.metric, own.slot, own.peer)
        rows = conn.execute(sa.select(host_rates).where(own.id.in_(newest)))
        found = {rate.subject: (rate, finding) for rate, finding in ((_rate(row), row.finding) for row in rows)}
        return [found[rate.subject] for rate in in_order(rate for rate, _ in found.values())]

    @reads
    def faults(self, conn: Connection, places: Mapping[str, Iterable[int]]) -> dict[str, list[str]]:
        """Return hosts whose last results name them alone, with the sentences.

        :param places: host -> slots that matter
        """
        found = {}
        for host, texts in _texts(conn, places).items():
            of_slots = {None, *places[host]}
            if own := [text for slot, text, is_alone in texts if is_alone and slot in of_slots]:
                found[host] = own
        return found

    @reads
    def fresh(self, conn: Connection, names: Iterable[str], since: datetime) -> set[tuple[str, int | None]]:
        """Return (host, slot) whose devices were measured since a time. CPUs have the slot None."""
        own = host_rates.c
        of_devices = own.metric.in_([RateMetric.MATMUL.value, RateMetric.MEMORY.value])
        query = sa.select(own.host, own.slot).where(own.host.in_(list(names)), of_devices, own.at >= since).distinct()
        return {(row.host, row.slot) for row in conn.execute(query)}

    @reads
    def past(self, conn: Connection, names: Iterable[str]) -> list[HostRate]:
        """Return the earlier results of hosts, the latest first: at most :data:`.PAST_MOST` of each subject.

        Results that were named are left out, so that a fault does not become the norm.
        """
        own = host_rates.c
        number = sa.func.row_number().over(
            partition_by=(own.host, own.metric, own.kind, own.slot, own.peer), order_by=own.id.desc()
        )
        inner = (
            sa.select(host_rates, number.label("number"))
            .where(own.host.in_(list(names)), own.finding.is_(None))
            .subquery()
        )
        query = sa.select(inner).where(inner.c.number <= PAST_MOST).order_by(inner.c.id.desc())
        return [_rate(row) for row in conn.execute(query)]

    @reads
    def peers(self, conn: Connection, rates: Iterable[HostRate]) -> list[HostRate]:
        """Return the latest results of the same metrics and kinds of hosts that these results are not of."""
        of_kinds = {(rate.metric.value, rate.kind) for rate in rates}
        measured = {rate.host for rate in rates}
        own = host_rates.c
        if not of_kinds:
            return []
        alike = sa.tuple_(own.metric, own.kind).in_(sorted(of_kinds))
        newest = (
            sa.select(sa.func.max(own.id))
            .where(alike, own.host.not_in(measured))
            .group_by(own.host, own.metric, own.kind, own.slot, own.peer)
        )
        return [_rate(row) for row in conn.execute(sa.select(host_rates).where(own.id.in_(newest)))]

    @reads
    def can_avoid(self, conn: Connection, attempt_id: int, names: Iterable[str]) -> bool:
        """Return whether other hosts of the pool could serve an attempt without these hosts."""
        of = sa.select(attempts.c.allocation_id).where(attempts.c.id == attempt_id).scalar_subquery()
        row = conn.execute(sa.select(allocations).where(allocations.c.id == of)).one()
        if row.trial_id is None:
            return False
        excluded = conn.scalar(sa.select(trials.c.excluded).where(trials.c.id == row.trial_id)) or []
        without = {entry["host"] for entry in excluded} | set(names)
        pool = conn.execute(sa.select(pools).where(pools.c.name == row.pool)).one()
        return never_reason(conn, pool, row, without=without) is None


def _named(rate: HostRate, finding: HostFinding | None) -> dict[str, str | None]:
    if finding is None:
        return {"finding": None, "names": None}
    names = "both" if len(finding.hosts) > 1 else "host" if finding.hosts == (rate.host,) else "peer"
    return {"finding": finding.sentence, "names": names}


def _texts(conn: Connection, names: Iterable[str]) -> dict[str, list[tuple[int | None, str, bool]]]:
    """Return for each host slot and sentence of its latest results, and whether the host alone is named."""
    own = host_rates.c
    wanted = list(names)
    latest = (
        sa.select(sa.func.max(own.id))
        .where(sa.or_(own.host.in_(wanted), own.peer.in_(wanted)))
        .group_by(own.host, own.metric, own.slot, own.peer)
    )
    found: dict[str, list[tuple[int | None, str, bool]]] = {}
    query = sa.select(host_rates).where(own.id.in_(latest), own.finding.is_not(None)).order_by(own.id)
    for row in conn.execute(query):
        named = {"host": [row.host], "peer": [row.peer]}.get(row.names, [row.host, row.peer])
        for host in named:
            entry = (row.slot, row.finding, row.names != "both")
            if host in wanted and entry not in found.setdefault(host, []):
                found[host].append(entry)
    return found


def _rate(row: sa.Row[object]) -> HostRate:
    return record_of(HostRate, row)


def _refuse_used(conn: Connection, names: Sequence[str]) -> None:
    """Check that no slot of hosts is held.

    :raises NotNowError: slots are in use; the message names hosts and holders
    """
    query = (
        sa.select(
            allocation_slots.c.host,
            allocation_slots.c.allocation_id,
            allocations.c.trial_id,
            gangs.c.dag_id,
            gangs.c.task_id,
        )
        .join(allocations, allocations.c.id == allocation_slots.c.allocation_id)
        .outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
        .where(held_rows(), allocation_slots.c.host.in_(names))
        .distinct()
        .order_by(allocation_slots.c.host)
    )
    rows = conn.execute(query).all()
    if rows:
        row = rows[0]
        holder = f"trial {row.trial_id}" if row.trial_id is not None else gang_text(row.dag_id, row.task_id)
        used = ", ".join(dict.fromkeys(one.host for one in rows))
        raise NotNowError(
            f"Slots are in use on {used}: {holder} holds slots of host '{row.host}'. A check takes all slots of a "
            "host, so that it disturbs no training. Wait for them with --wait TIME, or drain the host first."
        )
