"""The queue of a pool: passes, grants, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core import lifecycle
from airflow_provider_dtrain.core.placement import place
from airflow_provider_dtrain.core.queueing import PassDecision, run_pass
from airflow_provider_dtrain.core.resources import GangRequest, Host, Placement, PoolOptions, Unplaceable
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, StaleWatchError, UnplaceableError
from airflow_provider_dtrain.store.base import bump, guard, lock_pool, reads, writes
from airflow_provider_dtrain.store.ending import Ending
from airflow_provider_dtrain.store.holding import held_rows
from airflow_provider_dtrain.store.pools import options_of
from airflow_provider_dtrain.store.records import PassResult, Proof
from airflow_provider_dtrain.store.tables import (
    allocation_slots,
    allocations,
    attempts,
    counters,
    hosts,
    pools,
    ranks,
    slots,
    trials,
)
from airflow_provider_dtrain.store.views import run_name, store_mark

#: A waiting request that was not renewed for so long is skipped; its place is kept.
SILENT_AFTER = timedelta(seconds=60)
#: A grant that nobody took up goes back to waiting.
UNTAKEN_AFTER = timedelta(seconds=30)
#: A request that nobody renewed for so long is removed.
FORGOTTEN_AFTER = timedelta(hours=24)
#: An exclusion that leaves no host that could serve the trial lapses after this.
EXCLUDED_FOR = timedelta(minutes=10)


class Queue(Ending):
    """Who gets slots, and when. Any waiter runs the passes; no daemon exists."""

    def schedule(self, pool: str) -> PassResult:
        """Grant everything in a pool that may be granted now.

        One indexed read when nothing changed since the last pass.

        :raises NotFoundError: no such pool
        """
        return self._if_unchanged(pool) or self._pass(pool)

    @reads
    def _if_unchanged(self, conn: Connection, pool: str) -> PassResult | None:
        row = conn.execute(sa.select(pools).where(pools.c.name == pool)).one_or_none()
        return None if row is None or _is_due(row, self._now()) else PassResult(granted=(), waiting=row.waiting)

    @writes
    def _pass(self, conn: Connection, pool: str) -> PassResult:
        row, now = lock_pool(conn, pool), self._now()
        if not _is_due(row, now):
            return PassResult(granted=(), waiting=row.waiting)
        self._take_back(conn, pool, now)
        self._remove_forgotten(conn, pool, now)
        queue, machines, options = _waiting(conn, pool), pool_machines(conn, pool), options_of(row)
        heard = [entry for entry in queue if entry.renewed_at > now - SILENT_AFTER]
        decision = run_pass(machines, [_request(entry, machines, options, now) for entry in heard], options)
        granted = self._grant(conn, decision, now)
        _explain(conn, heard, decision)
        left = [entry for entry in queue if entry.id not in granted]
        due = _next_due(conn, pool, left, now)
        values = {"passed_version": pools.c.version, "next_due_at": due, "waiting": len(left)}
        conn.execute(pools.update().where(pools.c.name == pool).values(**values))
        return PassResult(granted=granted, waiting=len(left))

    def _take_back(self, conn: Connection, pool: str, now: datetime) -> None:
        """Let grants that nobody took up wait again; no process was started under them."""
        lifecycle.check("allocation", "granted", "waiting")
        where = (
            allocations.c.pool == pool,
            allocations.c.state == "granted",
            allocations.c.granted_at <= now - UNTAKEN_AFTER,
        )
        back = allocations.update().where(*where).values(
            state="waiting", token=None, granted_at=None, reason="it did not take up its grant within 30 s"
        )  # fmt: skip
        taken_back = list(conn.scalars(back.returning(allocations.c.id)))
        if taken_back:
            of_these = allocation_slots.c.allocation_id.in_(taken_back)
            values = {"released_at": now, "proof": "untaken"}
            conn.execute(allocation_slots.update().where(held_rows(), of_these).values(**values))

    def _remove_forgotten(self, conn: Connection, pool: str, now: datetime) -> None:
        forgotten = (allocations.c.pool == pool, allocations.c.state == "waiting")
        query = sa.select(attempts).join(allocations, allocations.c.id == attempts.c.allocation_id)
        late = allocations.c.renewed_at <= now - FORGOTTEN_AFTER
        for attempt in conn.execute(query.where(*forgotten, late, attempts.c.ended_at.is_(None))).all():
            message = "Nobody renewed the request for 24 h: its task is gone."
            self._end(conn, attempt, "errored", {"error": "StoreError", "kind": "platform", "message": message}, None)

    def _grant(self, conn: Connection, decision: PassDecision, now: datetime) -> tuple[int, ...]:
        grants = [(int(request_id), placement) for request_id, placement in decision.grants]
        if not grants:
            return ()
        lifecycle.check("allocation", "waiting", "granted")
        first = _raise_token(conn, len(grants)) - len(grants) + 1
        conn.execute(
            allocations.update()
            .where(allocations.c.id == sa.bindparam("of"))
            .values(state="granted", token=sa.bindparam("new_token"), granted_at=now, reason="", unplaceable=False),
            [{"of": grant[0], "new_token": first + number} for number, grant in enumerate(grants)],
        )
        rows = [
            {"allocation_id": allocation_id, "token": first + number, "host": host, "slot": slot}
            for number, (allocation_id, placement) in enumerate(grants)
            for host, slot in _places(placement)
        ]
        conn.execute(allocation_slots.insert(), rows)
        return tuple(allocation_id for allocation_id, _ in grants)

    @writes
    def renew_request(self, conn: Connection, attempt_id: int, watch: int) -> None:
        """Say that somebody still waits for this attempt's gang.

        :raises StaleWatchError: the watch is not current
        :raises UnplaceableError: no set of the pool's hosts can serve it any more, and it asked to fail then
        """
        attempt, now = guard(conn, attempt_id, watch), self._now()
        row = conn.execute(sa.select(allocations).where(allocations.c.id == attempt.allocation_id)).one()
        if row.state == "waiting" and row.unplaceable:
            raise UnplaceableError(row.reason)
        if row.state == "waiting":
            conn.execute(allocations.update().where(allocations.c.id == row.id).values(renewed_at=now))
            if row.renewed_at <= now - SILENT_AFTER:
                bump(conn, row.pool)

    @writes
    def take_up(self, conn: Connection, attempt_id: int, watch: int) -> str | None:
        """Begin to use a grant; return the run's name, None when the gang is not granted (any more).

        :raises StaleWatchError: the watch is not current
        """
        attempt = guard(conn, attempt_id, watch)
        if not self._set_allocation(conn, attempt.allocation_id, "granted", "starting"):
            return None
        self._set_attempt(conn, attempt, "starting")
        token = conn.scalar(sa.select(allocations.c.token).where(allocations.c.id == attempt.allocation_id))
        return run_name(store_mark(conn), attempt.trial_id, attempt.number, int(token or 0))

    @writes
    def put_back(
        self, conn: Connection, attempt_id: int, watch: int, reason: str, exclude_host: str | None = None
    ) -> None:
        """Let an attempt that could not start wait again, with its place in the queue.

        :param reason: why it could not start, in words
        :param exclude_host: a host that this trial should not use again
        :raises StaleWatchError: the watch is not current
        :raises ConflictError: hosts of the grant are not released yet
        """
        self._lock_pool_of(conn, attempt_id)
        attempt = guard(conn, attempt_id, watch)
        row = conn.execute(sa.select(allocations).where(allocations.c.id == attempt.allocation_id)).one()
        held = sorted(held_hosts(conn, row.id))
        if held and row.state != "granted":
            raise ConflictError(
                f"Attempt {attempt_id} cannot wait again: hosts {', '.join(held)} have not confirmed that nothing of "
                "it runs there. Fence and release them first."
            )
        if row.state != "released":
            self._release_host(conn, row.id, None, "untaken")
        self._exclude(conn, attempt.trial_id, exclude_host)
        self._wait_again(conn, attempt, row, reason)

    def _wait_again(self, conn: Connection, attempt: Row[Any], row: Row[Any], reason: str) -> None:
        """Give an attempt whose gang is released a new request in the old one's place."""
        self._set_attempt(conn, attempt, "waiting", plan=None, master=None, reason=reason, started_at=None)
        conn.execute(ranks.delete().where(ranks.c.attempt_id == attempt.id))
        new = self._request_again(conn, row, reason)
        conn.execute(attempts.update().where(attempts.c.id == attempt.id).values(allocation_id=new))

    def _exclude(self, conn: Connection, trial_id: int, host: str | None) -> None:
        """Keep a trial off a host from now on."""
        if host is None:
            return
        old = conn.scalar(sa.select(trials.c.excluded).where(trials.c.id == trial_id)) or []
        new = {"host": host, "until_s": (self._now() + EXCLUDED_FOR).timestamp()}
        excluded = [entry for entry in old if entry["host"] != host] + [new]
        conn.execute(trials.update().where(trials.c.id == trial_id).values(excluded=excluded))

    def _request_again(self, conn: Connection, row: Row[Any], reason: str) -> int:
        """Return a new waiting request that takes the place of an older one."""
        now = self._now()
        values = {name: getattr(row, name) for name in ("trial_id", "pool", "slots", "priority", "is_single_host",
                                                        "on_unplaceable", "sequence", "submitted_at")}  # fmt: skip
        query = allocations.insert().values(**values, state="waiting", renewed_at=now, reason=reason)
        bump(conn, row.pool)
        return int(conn.scalar(query.returning(allocations.c.id)) or 0)

    @writes
    def release(self, conn: Connection, attempt_id: int, watch: int, host: str, *, proof: Proof) -> None:
        """Free the attempt's slots on one host. Repeatable; also after the attempt has ended.

        :param proof: why nothing of it runs there: the host's answer, another boot, or its removal
        :raises StaleWatchError: the watch is not current, or a later attempt goes on with the gang
        :raises NotFoundError: the attempt never held slots there
        """
        self._lock_pool_of(conn, attempt_id)
        attempt = guard(conn, attempt_id, watch)
        newest = conn.scalar(
            sa.select(sa.func.max(attempts.c.id)).where(attempts.c.allocation_id == attempt.allocation_id)
        )
        if newest != attempt.id:
            raise StaleWatchError(f"Attempt {newest} goes on with the gang of attempt {attempt_id}: it stays held.")
        known = held_hosts(conn, attempt.allocation_id, released=True)
        if host not in known:
            raise NotFoundError(f"Attempt {attempt_id} holds nothing on '{host}', only {', '.join(sorted(known))}.")
        self._release_host(conn, attempt.allocation_id, host, proof)

    @writes
    def raise_token(self, conn: Connection, at_least: int) -> int:
        """Raise the token counter to what hosts have seen, after a restore from a backup; return it."""
        current = _raise_token(conn, 0)
        return _raise_token(conn, max(0, at_least - current))


def _is_due(row: Row[Any], now: datetime) -> bool:
    return row.version != row.passed_version or (row.next_due_at is not None and now >= row.next_due_at)


def held_hosts(conn: Connection, allocation_id: int, *, released: bool = False) -> set[str]:
    """Return the hosts on which an allocation holds slots, with those already released on request."""
    where = [allocation_slots.c.allocation_id == allocation_id, *(() if released else (held_rows(),))]
    return set(conn.scalars(sa.select(allocation_slots.c.host).where(*where)))


def _places(placement: Placement) -> list[tuple[str, int]]:
    return [(host, slot) for host, indices in placement.slots.items() for slot in (indices or (-1,))]


def _raise_token(conn: Connection, by: int) -> int:
    query = counters.update().where(counters.c.name == "token").values(value=counters.c.value + by)
    return int(conn.scalar(query.returning(counters.c.value)) or 0)


def _waiting(conn: Connection, pool: str) -> list[Any]:
    query = (
        sa.select(allocations, trials.c.excluded)
        .join(trials, trials.c.id == allocations.c.trial_id)
        .where(allocations.c.pool == pool, allocations.c.state == "waiting")
        .order_by(allocations.c.priority, allocations.c.sequence)
    )
    return list(conn.execute(query))


def pool_machines(conn: Connection, pool: str) -> list[Host]:
    """Return the pool's hosts as the core sees them; reads only slots that are held or unusable."""
    rows = conn.execute(sa.select(hosts.c.name, hosts.c.slot_count, hosts.c.state).where(hosts.c.pool == pool)).all()
    holders: dict[str, list[tuple[int, str]]] = {}
    of = allocation_slots.c
    taken = (
        sa.select(of.host, of.slot, allocations.c.trial_id)
        .join(hosts, hosts.c.name == of.host)
        .join(allocations, allocations.c.id == of.allocation_id)
        .where(hosts.c.pool == pool, held_rows(), of.slot >= 0)
    )
    for host, slot, trial_id in conn.execute(taken):
        holders.setdefault(host, []).append((slot, f"trial {trial_id}"))
    off: dict[str, set[int]] = {}
    blocked: dict[str, set[int]] = {}
    bad = sa.or_(sa.not_(slots.c.enabled), slots.c.state != "ready")
    query = sa.select(slots.c.host, slots.c.slot, slots.c.enabled).join(hosts, hosts.c.name == slots.c.host)
    for host, slot, enabled in conn.execute(query.where(hosts.c.pool == pool, bad)):
        (blocked if enabled else off).setdefault(host, set()).add(slot)
    return [
        Host(
            name=name, slots=count, state=state,
            held=frozenset(slot for slot, _ in holders.get(name, ())),
            disabled=frozenset(off.get(name, ())),
            blocked=frozenset(blocked.get(name, ())),
            holders=tuple(sorted(holders.get(name, ()))),
        )
        for name, count, state in rows
    ]  # fmt: skip


def _request(entry: Row[Any], machines: Sequence[Host], options: PoolOptions, now: datetime) -> GangRequest:
    request = GangRequest(str(entry.id), entry.slots, entry.priority, entry.is_single_host, sequence=entry.sequence)
    excluded = {item["host"]: item["until_s"] for item in entry.excluded}
    if not excluded:
        return request
    others = [host for host in machines if host.name not in excluded]
    rest = place(request, others, allow_heterogeneous=options.allow_heterogeneous, fit=options.fit)
    if isinstance(rest, Unplaceable) and rest.never:
        excluded = {host: until_s for host, until_s in excluded.items() if until_s > now.timestamp()}
    return GangRequest(
        request.request_id, entry.slots, entry.priority, entry.is_single_host, frozenset(excluded), entry.sequence
    )


def _explain(conn: Connection, heard: Sequence[Row[Any]], decision: PassDecision) -> None:
    """Write why each request waits, where that has changed."""
    changed = []
    for entry in heard:
        never: Mapping[str, Unplaceable] = decision.unplaceable
        found = never.get(str(entry.id))
        reason = found.reason if found else decision.reasons.get(str(entry.id))
        unplaceable = found is not None and entry.on_unplaceable == "fail"
        if reason is not None and (reason, unplaceable) != (entry.reason, entry.unplaceable):
            changed.append({"of": entry.id, "why": reason, "never": unplaceable})
    if changed:
        values: dict[str, Any] = {"reason": sa.bindparam("why"), "unplaceable": sa.bindparam("never")}
        conn.execute(allocations.update().where(allocations.c.id == sa.bindparam("of")).values(**values), changed)


def _next_due(conn: Connection, pool: str, left: Sequence[Row[Any]], now: datetime) -> datetime | None:
    """Return when time alone may change the next decision."""
    granted_at = conn.scalar(
        sa.select(sa.func.min(allocations.c.granted_at)).where(
            allocations.c.pool == pool, allocations.c.state == "granted"
        )
    )
    due = [granted_at + UNTAKEN_AFTER] if granted_at else []
    for entry in left:
        is_heard = entry.renewed_at > now - SILENT_AFTER
        due.append(entry.renewed_at + (SILENT_AFTER if is_heard else FORGOTTEN_AFTER))
        lapses = (datetime.fromtimestamp(item["until_s"], UTC) for item in entry.excluded)
        due.extend(lapse for lapse in lapses if lapse > now)
    return min(due, default=None)
