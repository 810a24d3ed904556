"""The queue of a pool: scheduling passes, grants, and their release."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.external_jobs import OWN_BACKEND
from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.lifecycle.states import AttemptState
from airflow_provider_dtrain.core.lifecycle.timing import SILENT_AFTER, UNTAKEN_AFTER
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, StaleWatchError, UnplaceableError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.notifications import NOTIFY, granted_messages
from airflow_provider_dtrain.store.database.rows import AllocationRow, PassVersionRow
from airflow_provider_dtrain.store.database.tables import (
    allocations,
    attempts,
)
from airflow_provider_dtrain.store.database.transactions import (
    Database,
    bump,
    guard,
    guard_gang,
    lock_gang,
    lock_pool,
    reads,
    writes,
)
from airflow_provider_dtrain.store.meter import Meter, Metric
from airflow_provider_dtrain.store.pools import options_of
from airflow_provider_dtrain.store.queue.accounting import (
    ineligible,
    waited_s,
)
from airflow_provider_dtrain.store.queue.held_gangs import (
    confirm_host,
    end_expired_gangs,
    leave_gang,
    require_confirmed,
)
from airflow_provider_dtrain.store.queue.pass_notes import ended_reasons, notes
from airflow_provider_dtrain.store.queue.pass_snapshot import (
    FORGOTTEN_AFTER,
    SITUATION,
    decide,
    is_untidy,
    next_due,
    situation,
)
from airflow_provider_dtrain.store.queue.pass_writes import (
    AWAIT_PASS,
    LOCK_FOR_PASS,
    PASSED,
    POOL_STATE,
    PREEMPT,
    ended,
    grants,
    noted,
    raise_token,
)
from airflow_provider_dtrain.store.queue.requeue import exclude, set_waiting, wait_again
from airflow_provider_dtrain.store.queue.shared_passes import Turn, join_turn
from airflow_provider_dtrain.store.queue.slot_release import (
    ALLOCATION,
    ALLOCATION_OF_ATTEMPT,
    HOSTS_OF_ATTEMPT,
    release_host,
)
from airflow_provider_dtrain.store.queue.transitions import end_attempt, set_attempt, ungrant
from airflow_provider_dtrain.store.records.queue import PassResult
from airflow_provider_dtrain.store.records.trials import Proof
from airflow_provider_dtrain.store.views import run_name, store_mark
from airflow_provider_dtrain.store.wakeup.watcher import Wakeup

#: Most tries of a caller whose pass failed or met the passes of other processes.
TURNS = 5
#: Grants that a store can have lost with its last backup: a thousand per second for 34 years.
MOST_RAISE = 2**40
#: Highest token that a host can raise the counter to. Supervisors accept 10**18, so most of the tokens stay free.
TOKEN_LIMIT = 2**56
_TAKE_UP = (
    allocations.update()
    .where(allocations.c.id == sa.bindparam("gang"), allocations.c.state == "granted")
    .values(state="starting")
    .returning(allocations.c.token)
)
#: The newest attempt of the allocation of an attempt.
_NEWEST = sa.select(sa.func.max(attempts.c.id).label("id")).where(attempts.c.allocation_id == ALLOCATION_OF_ATTEMPT)


class Queue:
    """Queue of requests for slots. Any waiter runs the scheduling passes, without a daemon.

    :param wakeup: wakes the waiters of this process for grants that it has committed
    """

    def __init__(self, db: Database, wakeup: Wakeup) -> None:
        self.db = db
        self._wakeup = wakeup

    def schedule(self, pool: str) -> PassResult:
        """Grant all requests of a pool that can be granted now, and wake their waiters in this process.

        This is one indexed read when nothing changed since the last pass. While another thread or process runs a
        pass, the caller waits for that pass, which serves every request that was committed before the call.

        :raises NotFoundError: the pool does not exist
        """
        result = self._schedule(pool)
        self._wakeup.wake_granted(pool, result.granted)
        _measure(self.db.meter, pool, result)
        return result

    def _schedule(self, pool: str) -> PassResult:
        result = PassResult(granted=(), waiting=0)
        for _ in range(TURNS):
            is_due, waiting = self._read_pool(pool)
            result = PassResult(granted=(), waiting=waiting)
            if not is_due:
                return result
            turn, is_mine = join_turn(str(self.db.engine.url), pool)
            if is_mine:
                with turn:
                    return self._lead(pool, turn)
            if (left := turn.wait()) is not None:
                return PassResult(granted=(), waiting=left)
        return result

    def _lead(self, pool: str, turn: Turn) -> PassResult:
        """Return the result of a turn's pass, run here or by another process.

        The result is for all callers that have joined the turn.
        """
        for _ in range(TURNS):
            found = self._pass(pool, turn)
            if found is None:
                self._await_pass(pool)
                # The next read sees all changes of the callers that joined before this point.
                turn.close()
                is_due, waiting = self._read_pool(pool)
                found = None if is_due else PassResult(granted=(), waiting=waiting)
            if found is not None:
                turn.waiting = found.waiting
                return found
        return PassResult(granted=(), waiting=waiting)

    @reads
    def _read_pool(self, conn: Connection, pool: str) -> tuple[bool, int]:
        """Return whether a pass is due, and the number of waiting requests.

        :raises NotFoundError: the pool does not exist
        """
        # The lock of a pool that does not exist is the error that lists the pools.
        row = statements.first(conn, POOL_STATE, {"pool_name": pool}) or lock_pool(conn, pool)
        return _is_due(row, self.db.now()), int(row.waiting)

    @reads
    def _await_pass(self, conn: Connection, pool: str) -> None:
        """Wait until no other process runs a pass of the pool."""
        if conn.dialect.name == "postgresql":
            statements.rows(conn, AWAIT_PASS, {"pool_name": pool})

    @writes
    def _pass(self, conn: Connection, pool: str, turn: Turn) -> PassResult | None:
        """Run a pass and return its result, None when another process runs one."""
        found = self._passed(conn, pool)
        if found is not None:
            turn.close()
        return found

    def _passed(self, conn: Connection, pool: str) -> PassResult | None:
        now = self.db.now()
        values = {"pool_name": pool}
        locked = statements.first(conn, LOCK_FOR_PASS, {**values, "now": now})
        if locked is None:
            return None
        if not locked.is_due:
            return PassResult(granted=(), waiting=locked.waiting)
        options = options_of(locked)
        found = situation(statements.read(conn, SITUATION, values), options, now)
        if is_untidy(found):
            _tidy(conn, now, pool)
            found = situation(statements.read(conn, SITUATION, values), options, now)
        decision = decide(found)
        granted = tuple(int(request_id) for request_id, _ in decision.grants)
        preempted = tuple(int(victim) for victim, _ in decision.preemptions)
        left = len(found.waiting) - len(granted)
        changed = notes(found, decision, granted)
        orders = [*ended(ended_reasons(found, changed, granted), now), *grants(conn, found, decision)]
        orders.append(
            (
                PREEMPT,
                [
                    {"of": int(victim), "for_whom": int(claimant), "now": now}
                    for victim, claimant in decision.preemptions
                ],
            )
        )
        orders += noted(conn, changed)
        orders.append((PASSED, [{**values, "due": next_due(found, decision, granted), "left": left}]))
        if conn.dialect.name == "postgresql":
            orders.append((NOTIFY, granted_messages(pool, granted)))
        statements.write(conn, orders)
        times = {entry.id: waited_s(entry, now) for entry in found.waiting}
        return PassResult(
            granted=granted, waiting=left, preempted=preempted, waited_s=tuple(times[one] for one in granted)
        )

    @writes
    def renew(self, conn: Connection, attempt_id: int, watch: int) -> None:
        """Renew the request for this attempt's gang.

        :raises StaleWatchError: the watch is not current
        :raises UnplaceableError: no set of the pool's hosts can serve it now, and the submission says to fail then
        """
        _, row = guard_gang(conn, attempt_id, watch)
        renew_waiting(conn, row, self.db.now())

    @writes
    def take_up(self, conn: Connection, attempt_id: int, watch: int) -> str | None:
        """Start to use a grant and return the run's name, None when the gang is not granted.

        :raises StaleWatchError: the watch is not current
        """
        attempt = guard(conn, attempt_id, watch)
        states.check("allocation", "granted", "starting")
        taken = statements.first(conn, _TAKE_UP, {"gang": attempt.allocation_id})
        if taken is None:
            return None
        set_attempt(conn, attempt, AttemptState.STARTING, reason="")
        return run_name(store_mark(conn), attempt.trial_id, attempt.number, int(taken.token))

    @writes
    def put_back(
        self, conn: Connection, attempt_id: int, watch: int, reason: str, exclude_host: str | None = None
    ) -> None:
        """Return an attempt that could not start to the queue, in its old place.

        :param reason: why it could not start, in words
        :param exclude_host: a host that this trial must not use again
        :raises StaleWatchError: the watch is not current
        :raises ConflictError: hosts of the grant are not released yet
        """
        attempt, row, [hosts] = lock_gang(conn, attempt_id, watch, HOSTS_OF_ATTEMPT)
        now = self.db.now()
        if row.trial_id is None:
            require_confirmed(conn, row, attempt_id)
            leave_gang(conn, now, row, attempt_id)
            return set_waiting(conn, attempt, reason)
        held = sorted(entry.host for entry in hosts if entry.held)
        if held and row.state != "granted":
            raise ConflictError(
                f"Attempt {attempt_id} cannot wait again: hosts {', '.join(held)} have not confirmed that its "
                "processes have ended. Fence and release these hosts first."
            )
        if row.state != "released":
            release_host(conn, now, row.id, None, "untaken")
        exclude(conn, now, attempt, exclude_host, reason)
        wait_again(conn, now, attempt, row, reason)

    @writes
    def release(
        self, conn: Connection, attempt_id: int, watch: int, host: str | Sequence[str], *, proof: Proof
    ) -> None:
        """Free the attempt's slots on one or several hosts. Repeatable, also after the attempt has ended.

        :param proof: evidence that no process of it runs there: the host's answer, another boot, or its removal
        :raises StaleWatchError: the watch is not current, or a later attempt uses the gang now
        :raises NotFoundError: the attempt never held slots there
        """
        _, row, [hosts, [newest]] = lock_gang(conn, attempt_id, watch, HOSTS_OF_ATTEMPT, _NEWEST)
        names = [host] if isinstance(host, str) else [*host]
        now = self.db.now()
        if row.trial_id is None:
            for name in names:
                row = statements.first(conn, ALLOCATION, {"gang": row.id})
                confirm_host(conn, now, row, attempt_id, name, proof)
            return
        if newest.id != attempt_id:
            raise StaleWatchError(
                f"Attempt {newest.id} continues with the gang of attempt {attempt_id}, so its slots stay held."
            )
        known = {entry.host for entry in hosts}
        if unknown := sorted(set(names) - known):
            listed = "', '".join(unknown)
            raise NotFoundError(
                f"Attempt {attempt_id} never held slots on '{listed}'. Hosts of its gang: {', '.join(sorted(known))}."
            )
        held = {entry.host for entry in hosts if entry.held}
        release_host(conn, now, row.id, None if held <= set(names) else names, proof)

    @writes
    def raise_token(self, conn: Connection, at_least: int) -> int:
        """Raise the token counter to the highest token that a host has seen, and return the counter.

        This is needed after a restore from a backup. The counter stays as it is when no backup explains the token: a
        host reads it from a file that user code can write, and a counter at its maximum would end all grants.
        """
        current = raise_token(conn, 0)
        if at_least > min(current + MOST_RAISE, TOKEN_LIMIT):
            return current
        return raise_token(conn, max(0, at_least - current))


def _measure(meter: Meter, pool: str, result: PassResult) -> None:
    """Emit the metrics of a committed pass."""
    tags = {"pool_name": pool}
    if result.granted:
        meter.count(Metric.GRANTS, len(result.granted), tags)
    if result.preempted:
        meter.count(Metric.PREEMPTIONS, len(result.preempted), tags)
    for seconds in result.waited_s:
        meter.timing(Metric.TIME_TO_GRANT, seconds, tags)


def _is_due(row: PassVersionRow, now: datetime) -> bool:
    if row.backend != OWN_BACKEND:
        return False
    return row.version != row.passed_version or (row.next_due_at is not None and now >= row.next_due_at)


def renew_waiting(conn: Connection, row: AllocationRow, now: datetime) -> None:
    """Renew a request if it still waits.

    :param row: of allocations
    :raises UnplaceableError: no set of the pool's hosts can serve it now, and the submission says to fail then
    """
    if row.state != "waiting":
        return
    if row.unplaceable:
        raise UnplaceableError(row.reason)
    was_silent = row.renewed_at <= now - SILENT_AFTER
    statements.update(conn, allocations, row.id, renewed_at=now, **(ineligible(row, now) if was_silent else {}))
    if was_silent:
        bump(conn, row.pool)


def end_forgotten(conn: Connection, now: datetime, pool: str) -> None:
    """End the held gangs and requests of a pool that no task uses or renews."""
    end_expired_gangs(conn, now, pool, FORGOTTEN_AFTER)
    _remove_forgotten(conn, now, pool)


def _tidy(conn: Connection, now: datetime, pool: str) -> None:
    _take_back(conn, now, pool)
    end_forgotten(conn, now, pool)


def _take_back(conn: Connection, now: datetime, pool: str) -> None:
    """Return grants that were not taken up to the queue. No process was started under them."""
    where = (
        allocations.c.pool == pool,
        allocations.c.state == "granted",
        allocations.c.granted_at <= now - UNTAKEN_AFTER,
    )
    for row in conn.execute(sa.select(allocations).where(*where)).all():
        ungrant(conn, now, row, "its task did not take up the grant within 30 s")


def _remove_forgotten(conn: Connection, now: datetime, pool: str) -> None:
    forgotten = (allocations.c.pool == pool, allocations.c.state == "waiting")
    query = sa.select(attempts).join(allocations, allocations.c.id == attempts.c.allocation_id)
    late = allocations.c.renewed_at <= now - FORGOTTEN_AFTER
    for attempt in conn.execute(query.where(*forgotten, late, attempts.c.ended_at.is_(None))).all():
        message = "The request was not renewed for 24 h: its task is gone."
        end_attempt(
            conn, now, attempt, "errored", {"error": "StoreError", "kind": "platform", "message": message}, None
        )
