"""Hosts and their slots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, UserError
from airflow_provider_dtrain.resources.hosts import SlotState
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import HostRow, SlotRow, columns_of, record_of
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    experiments,
    gangs,
    hosts,
    slots,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import (
    Database,
    bump,
    check_name,
    count,
    lock_pool,
    reads,
    writes,
)
from airflow_provider_dtrain.store.meter import Metric
from airflow_provider_dtrain.store.pools import pool_for_host
from airflow_provider_dtrain.store.queue.evacuations import gangs_on
from airflow_provider_dtrain.store.queue.held_gangs import gang_text
from airflow_provider_dtrain.store.queue.slot_release import held_rows, move_host, release_host, settle_draining
from airflow_provider_dtrain.store.queue.transitions import ungrant
from airflow_provider_dtrain.store.records.queue import GangOnHost
from airflow_provider_dtrain.store.records.trials import AttemptView, HostRecord, SlotRecord, SlotView
from airflow_provider_dtrain.store.views import attempt_views, store_mark

#: Name of a run after the mark of its store: trial, attempt and token.
_RUN = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,18})", re.ASCII)
#: Most characters of a slot's note.
NOTE_CHARS = 1000


class Hosts:
    """Registered machines, their state, and the holders of their slots."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @writes
    def add(self, conn: Connection, record: HostRecord, *, by: str = "") -> None:
        """Register a host, and create its pool unless it exists.

        :param by: the user, for the audit log
        :raises ConflictError: the name or the machine is registered, or the pool holds another slot type
        """
        pool_for_host(self.db, conn, record.pool, record.slot_type)
        insert_host(self.db, conn, record, by)

    @writes
    def ensure_local(self, conn: Connection, record: HostRecord) -> bool:
        """Register this machine as host ``local`` if no host is registered, and return whether it did."""
        pool_for_host(self.db, conn, record.pool, record.slot_type)
        if conn.scalar(sa.select(hosts.c.name).limit(1)) is not None:
            return False
        insert_host(self.db, conn, record)
        return True

    @reads
    def get(self, conn: Connection, name: str) -> HostRecord:
        """Return a registered host.

        :raises NotFoundError: the host does not exist; the message lists the existing ones
        """
        found = _as_records(*statements.read(conn, (_ONE_HOST, _ITS_SLOTS), {"host_name": name}))
        if not found:
            raise _no_host(conn, name)
        return found[0]

    @reads
    def facts_at(self, conn: Connection, name: str) -> datetime | None:
        """Return the time of the last probe of a host, None without one."""
        found: datetime | None = conn.scalar(sa.select(hosts.c.facts_at).where(hosts.c.name == name))
        return found

    @writes
    def update_facts(
        self,
        conn: Connection,
        name: str,
        facts: Mapping[str, Any],
        *,
        machine_id: str | None = None,
        boot_id: str | None = None,
        pid_ns: str | None = None,
        address: str | None = None,
        python: str | None = None,
        host_key: str | None = None,
        slots: Iterable[SlotRecord] | None = None,
    ) -> None:
        """Store the result of a probe. None leaves a field as it is.

        :param slots: the devices found now; a slot that is still there keeps its ``enabled`` and ``state``
        :raises ConflictError: a gang holds a slot that disappeared, or another host is the same machine
        """
        row = _locked_host(conn, name)
        given = {
            "machine_id": machine_id, "boot_id": boot_id, "pid_ns": pid_ns, "address": address, "python": python,
            "host_key": host_key,
        }  # fmt: skip
        values: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if slots is not None:
            found = tuple(slots)
            _replace_slots(conn, name, found)
            values["slot_count"] = _slot_count(found)
            bump(conn, row.pool)
        try:
            conn.execute(
                hosts.update().where(hosts.c.name == name).values(facts=facts, facts_at=self.db.now(), **values)
            )
        except sa.exc.IntegrityError as error:
            raise ConflictError(f"Another registered host is the same machine as '{name}'.") from error

    @writes
    def set_state(self, conn: Connection, name: str, state: HostState, reason: str = "", *, by: str = "") -> None:
        """Change a host's state. A draining host without held slots is drained at once.

        :param reason: shown to users
        :raises IllegalTransitionError: the table of transitions does not allow it
        """
        self._set_state(conn, name, state, reason, by)

    @writes
    def drain(
        self,
        conn: Connection,
        name: str,
        reason: str,
        *,
        deadline: datetime | None = None,
        kills: bool = False,
        by: str = "",
    ) -> None:
        """Grant no new slots on a host, and record the time by which no gang may be left there.

        The follower of each gang reads the deadline. A later call replaces an earlier one.

        :param reason: shown to users
        :param deadline: aware; a time that has passed means at once; None = gangs may finish
        :param kills: gangs that cannot resume from a checkpoint are ended at the deadline
        :param by: the user
        :raises IllegalTransitionError: the table of transitions does not allow it
        """
        self._drain(conn, name, reason, deadline, kills, by)

    @writes
    def condemn(self, conn: Connection, name: str, fault: str, by: str) -> bool:
        """Evacuate a host at once because a check found a fault, and return whether it was done.

        A host that is not ready, a node of a job, which its scheduler owns, and the last ready host of a pool stay as
        they are.

        :param fault: shown to users, e.g. ``memory 40 % below its peers``
        :param by: the check
        """
        row = _locked_host(conn, name)
        others = sa.select(hosts.c.name).where(
            hosts.c.pool == row.pool, hosts.c.state == HostState.READY, hosts.c.name != name
        )
        is_owned = row.state == HostState.READY and row.external_job_id is None
        if not is_owned or conn.execute(others.limit(1)).first() is None:
            return False
        self._drain(conn, name, fault, self.db.now(), False, by)
        return True

    def _drain(self, conn: Connection, name: str, reason: str, deadline: datetime | None, kills: bool, by: str) -> None:
        row = self._set_state(conn, name, HostState.DRAINING, reason, by)
        if deadline is None:
            return
        conn.execute(hosts.update().where(hosts.c.name == name).values(drain_by=deadline, drain_kills=kills))
        until = f"until={deadline.isoformat(timespec='seconds')}{' kills' if kills else ''}"
        self.db.audit(conn, by, "host evacuated", name, f"{until} {reason}".strip())
        now = self.db.now()
        if deadline <= now:
            _revoke_grants(conn, now, name, f"host '{name}' is evacuated")
            settle_draining(conn, now, row.pool)

    @reads
    def gangs_on(self, conn: Connection, name: str) -> Sequence[GangOnHost]:
        """Return the gangs that hold slots on a host, in the order of their requests."""
        return gangs_on(conn, name)

    def _set_state(self, conn: Connection, name: str, state: HostState, reason: str, by: str) -> HostRow:
        row = _locked_host(conn, name)
        if (row.state, state) == ("drained", "draining"):
            state = HostState.DRAINED
        now = self.db.now()
        if row.state != state:
            states.check("host", row.state, state)
            move_host(conn, now, name, state)
            self.db.audit(conn, by, f"host {state}", name, reason)
            if state == "lost":
                count(conn, Metric.HOST_LOST, pool_name=row.pool)
        bump(conn, row.pool)
        no_deadline = {"drain_by": None, "drain_kills": False}
        conn.execute(hosts.update().where(hosts.c.name == name).values(state_reason=reason, **no_deadline))
        settle_draining(conn, now, row.pool)
        return row

    @writes
    def set_variables(self, conn: Connection, name: str, changes: Mapping[str, str | None], *, by: str = "") -> None:
        """Change the environment of a host's ranks, from the next launch on.

        :param changes: name -> value, None to remove it
        """
        _locked_host(conn, name)
        before = conn.scalar(sa.select(hosts.c.variables).where(hosts.c.name == name)) or {}
        after = {key: value for key, value in {**before, **changes}.items() if value is not None}
        conn.execute(hosts.update().where(hosts.c.name == name).values(variables=after or None))
        # Values may be secrets of the site, e.g. in the address of a proxy.
        self.db.audit(conn, by, "host variables", name, ", ".join(sorted(changes)))

    @writes
    def set_slot_enabled(self, conn: Connection, host: str, index: int, enabled: bool, *, by: str = "") -> None:
        """Enable or disable one slot. A process that runs on it continues."""
        _set_slot(conn, host, index, enabled=enabled)
        self.db.audit(conn, by, "slot enabled" if enabled else "slot disabled", f"{host}:{index}")

    @writes
    def mark_slot(self, conn: Connection, host: str, index: int, state: SlotState, note: str = "") -> None:
        """Record that a slot is stuck, busy elsewhere, or ready again.

        :param note: the processes that are left in it, or its holder; cut to 1000 characters
        """
        _set_slot(conn, host, index, state=state, note=note[:NOTE_CHARS] or None)

    @writes
    def remove(self, conn: Connection, name: str, *, force: bool = False, by: str = "") -> list[AttemptView]:
        """Remove a host and return the attempts that held slots on it.

        :param force: also when slots of it are held. The caller guarantees that no process of them runs there.
        :raises ConflictError: slots are held, and ``force`` is not given; the message names the holders
        """
        row = _locked_host(conn, name)
        holding = sa.select(allocation_slots.c.allocation_id).where(held_rows(), allocation_slots.c.host == name)
        held = set(conn.scalars(holding))
        views = attempt_views(conn, sa.and_(attempts.c.allocation_id.in_(held), attempts.c.ended_at.is_(None)))
        if held and not force:
            trials_of = (f"trial {view.trial_id} of {view.experiment}" for view in views)
            holders = ", ".join(trials_of) or f"{len(held)} gang(s) of ended trials"
            raise ConflictError(
                f"Host '{name}' is held by {holders}. Drain it and wait (airflow dtrain hosts drain {name}), end them, "
                "or use --force."
            )
        for allocation_id in sorted(held):
            release_host(conn, self.db.now(), allocation_id, name, "removed")
        conn.execute(hosts.delete().where(hosts.c.name == name))
        bump(conn, row.pool)
        self.db.audit(conn, by, "host removed", name, f"force={force} ended={[view.run for view in views]}")
        return views

    @reads
    def slots(self, conn: Connection, pool: str | None = None) -> list[SlotView]:
        """Return every slot with its holder, by host and index."""
        rows = (
            sa.select(
                slots,
                hosts.c.pool,
                allocations.c.id.label("allocation_id"),
                sa.func.coalesce(allocations.c.trial_id, attempts.c.trial_id).label("trial_id"),
                experiments.c.name.label("experiment"),
                allocations.c.granted_at.label("held_since"),
                gangs.c.dag_id.label("gang_dag"),
                sa.func.coalesce(gangs.c.dag_id, trials.c.dag_id).label("dag_id"),
                gangs.c.task_id.label("gang_task"),
            )
            .join(hosts, hosts.c.name == slots.c.host)
            .outerjoin(
                allocation_slots,
                sa.and_(held_rows(), allocation_slots.c.host == slots.c.host, allocation_slots.c.slot == slots.c.slot),
            )
            .outerjoin(allocations, allocations.c.id == allocation_slots.c.allocation_id)
            .outerjoin(gangs, gangs.c.allocation_id == allocations.c.id)
            .outerjoin(attempts, attempts.c.id == gangs.c.attempt_id)
            .outerjoin(trials, trials.c.id == allocations.c.trial_id)
            .outerjoin(experiments, experiments.c.id == trials.c.experiment_id)
            .where(sa.true() if pool is None else hosts.c.pool == pool)
            .order_by(slots.c.host, slots.c.slot)
        )
        return [
            record_of(
                SlotView,
                row,
                index=row.slot,
                experiment=row.experiment if row.gang_dag is None else gang_text(row.gang_dag, row.gang_task),
                note=row.note or "",
            )
            for row in conn.execute(rows)
        ]

    @reads
    def unknown_runs(self, conn: Connection, host: str, runs: Mapping[str, str | None]) -> list[str]:
        """Return this store's live runs on a host that hold no slots there according to the store.

        This happens after a restore from a backup that is older than their grant, and after a removal of the host
        with ``force``.

        :param runs: name of the run -> identifier of its launch; None = not known
        """
        mark = f"{store_mark(conn)}-t"
        found = {}
        for name in runs:
            parts = _RUN.fullmatch(name.removeprefix(mark))
            if name.startswith(mark) and parts is not None:
                found[name] = (int(parts[1]), int(parts[2]), int(parts[3]))
        known: dict[tuple[int, int, int], Any] = {}
        held = (allocation_slots.c.host == host, allocation_slots.c.released_at.is_(None))
        for some in _chunks(list(found.values()), 200):
            query = (
                sa.select(attempts.c.trial_id, attempts.c.number, allocation_slots.c.token, attempts.c.plan)
                .join(allocation_slots, allocation_slots.c.allocation_id == attempts.c.allocation_id)
                .where(allocation_slots.c.token.in_([token for _, _, token in some]), *held)
                .where(sa.tuple_(attempts.c.trial_id, attempts.c.number).in_([key[:2] for key in some]))
            )
            known |= {(row.trial_id, row.number, row.token): row.plan for row in conn.execute(query)}
        return [name for name, key in found.items() if key not in known or _is_another(known[key], host, runs[name])]

    @reads
    def with_blocked_slots(self, conn: Connection) -> list[str]:
        """Return hosts with slots that are stuck or busy elsewhere, as of their last report."""
        return sorted(set(conn.scalars(sa.select(slots.c.host).where(slots.c.state != "ready"))))

    @reads
    def list(self, conn: Connection, pool: str | None = None, name: str | None = None) -> list[HostRecord]:
        """Return registered hosts by name.

        :param pool: only hosts of this pool; None = all
        :param name: only this host; None = all
        """
        if pool is None and name is None:
            return _as_records(*statements.read(conn, (_HOSTS, _THEIR_SLOTS), {}))
        given = {hosts.c.pool: pool, hosts.c.name: name}
        return _records(conn, sa.and_(*(column == value for column, value in given.items() if value is not None)))

    @reads
    def exist(self, conn: Connection) -> bool:
        """Return whether there is a host, which may be a node of a job."""
        return statements.first(conn, _ANY, {}) is not None

    @reads
    def pools_with_hosts(self, conn: Connection, *, without: str = "") -> set[str]:
        """Return the pools that have registered hosts. Nodes of jobs do not count.

        :param without: a host that does not count either
        """
        return {row.pool for row in statements.rows(conn, _POOLS_WITH_HOSTS, {"left_out": without})}

    def registered(self, pool: str | None = None) -> Sequence[HostRecord]:
        """Return hosts by name, without the nodes of jobs.

        :param pool: only hosts of this pool; None = all
        """
        return [one for one in self.list(pool) if not one.is_node]


def insert_host(db: Database, conn: Connection, record: HostRecord, by: str = "") -> None:
    """Register a host of a locked pool.

    :param by: the user, for the audit log
    :raises ConflictError: the name or the machine is registered
    """
    check_name("host", record.name)
    check_name("pool", record.pool)
    _refuse_known(conn, record)
    now = db.now()
    values = columns_of(record, hosts)
    conn.execute(hosts.insert().values(**values, slot_count=_slot_count(record.slots), state_since=now, facts_at=now))
    _insert_slots(conn, record.name, record.slots)
    bump(conn, record.pool)
    db.audit(conn, by, "host added", record.name, f"pool={record.pool}")


def _locked_host(conn: Connection, name: str) -> HostRow:
    pool = conn.scalar(sa.select(hosts.c.pool).where(hosts.c.name == name))
    if pool is None:
        raise _no_host(conn, name)
    lock_pool(conn, pool)
    row: HostRow = conn.execute(sa.select(hosts).where(hosts.c.name == name)).one()
    return row


def _revoke_grants(conn: Connection, now: datetime, host: str, reason: str) -> None:
    """Return grants of a host that no follower has taken up to the queue. No process was started under them."""
    on_host = sa.select(allocation_slots.c.allocation_id).where(held_rows(), allocation_slots.c.host == host)
    where = (allocations.c.id.in_(on_host), allocations.c.state == "granted", allocations.c.trial_id.is_not(None))
    for row in conn.execute(sa.select(allocations).where(*where)).all():
        ungrant(conn, now, row, reason)


def _no_host(conn: Connection, name: str) -> NotFoundError:
    known = sorted(conn.scalars(sa.select(hosts.c.name)))
    return NotFoundError(f"There is no host '{name}'. Hosts: {', '.join(known) or 'none yet'}.")


def _refuse_known(conn: Connection, record: HostRecord) -> None:
    same = conn.scalar(sa.select(hosts.c.name).where(hosts.c.name == record.name))
    if same is not None:
        raise ConflictError(f"Host '{record.name}' is registered already. See: airflow dtrain hosts list")
    identity = {name: getattr(record, name) for name in ("machine_id", "boot_id", "pid_ns")}
    if None in identity.values():
        return
    twin = conn.scalar(sa.select(hosts.c.name).where(*(hosts.c[key] == value for key, value in identity.items())))
    if twin is not None:
        raise ConflictError(
            f"Host '{record.name}' is the same machine as host '{twin}' (machine id {record.machine_id}). With two "
            f"names, its slots would be granted twice. Remove '{twin}' first."
        )


def _slot_count(records: tuple[SlotRecord, ...]) -> int:
    indices = sorted(record.index for record in records)
    if indices != list(range(len(indices))):
        raise UserError(f"The slots of a host must be numbered from 0 without gaps, got {indices}.")
    return len(indices)


def _insert_slots(conn: Connection, host: str, records: Iterable[SlotRecord]) -> None:
    rows = [{"host": host, "slot": record.index, **columns_of(record, slots)} for record in records]
    if rows:
        conn.execute(slots.insert(), rows)


def _replace_slots(conn: Connection, host: str, found: tuple[SlotRecord, ...]) -> None:
    old = {row.slot: row for row in conn.execute(sa.select(slots).where(slots.c.host == host))}
    removed = set(old) - {record.index for record in found}
    where = (held_rows(), allocation_slots.c.host == host, allocation_slots.c.slot.in_(removed))
    busy = sorted(conn.scalars(sa.select(allocation_slots.c.slot).where(*where)))
    if busy:
        raise ConflictError(f"Slots {busy} of host '{host}' are no longer found there, but a gang holds them.")
    conn.execute(slots.delete().where(slots.c.host == host))
    _insert_slots(conn, host, (_kept(record, old.get(record.index)) for record in found))


def _kept(record: SlotRecord, old: SlotRow | None) -> SlotRecord:
    if old is None:
        return record
    return replace(record, enabled=old.enabled, state=old.state)


_ANY: sa.Select[Any] = sa.select(hosts.c.name).limit(1)
_POOLS_WITH_HOSTS: sa.Select[Any] = (
    sa.select(hosts.c.pool)
    .where(hosts.c.name != sa.bindparam("left_out"), hosts.c.external_job_id.is_(None))
    .distinct()
)
_HOSTS: sa.Select[Any] = sa.select(hosts).order_by(hosts.c.name)
_THEIR_SLOTS: sa.Select[Any] = (
    sa.select(slots).join(hosts, hosts.c.name == slots.c.host).order_by(slots.c.host, slots.c.slot)
)
_ONE_HOST, _ITS_SLOTS = (query.where(hosts.c.name == sa.bindparam("host_name")) for query in (_HOSTS, _THEIR_SLOTS))


def _records(conn: Connection, where: sa.ColumnElement[bool]) -> list[HostRecord]:
    return _as_records(conn.execute(_HOSTS.where(where)).all(), conn.execute(_THEIR_SLOTS.where(where)))


def _as_records(rows: Sequence[Row[Any]], of_slots: Iterable[Row[Any]]) -> list[HostRecord]:
    of: dict[str, list[SlotRecord]] = {row.name: [] for row in rows}
    for slot in of_slots:
        of[slot.host].append(record_of(SlotRecord, slot, index=slot.slot))
    return [record_of(HostRecord, row, slots=tuple(of[row.name])) for row in rows]


def _set_slot(conn: Connection, host: str, index: int, **values: Any) -> None:
    row = _locked_host(conn, host)
    changed = conn.execute(slots.update().where(slots.c.host == host, slots.c.slot == index).values(**values))
    if not changed.rowcount:
        raise NotFoundError(f"Host '{host}' has no slot {index}, it has {row.slot_count} slot(s), from 0.")
    bump(conn, row.pool)


def _is_another(plan: Any, host: str, launch: str | None) -> bool:
    """Return whether a live run is of another launch than the one in the store."""
    mine = (((plan or {}).get("plans") or {}).get(host) or {}).get("launch")
    return mine is not None and launch is not None and mine != launch


def _chunks(values: list[Any], size: int) -> Iterator[list[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))
