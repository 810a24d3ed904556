"""The queue of a pool: scheduling passes, grants, and their release."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.lifecycle.timing import EXCLUDED_FOR, SILENT_AFTER, UNTAKEN_AFTER
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, StaleWatchError, UnplaceableError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.statements import Statement
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    ranks,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import (
    bump,
    guard,
    guard_gang,
    lock_gang,
    lock_pool,
    reading,
    reads,
    writes,
)
from airflow_provider_dtrain.store.pools import options_of
from airflow_provider_dtrain.store.queue.accounting import (
    KEPT_BY_REQUESTS,
    held_s,
    ineligible,
    paused_by,
    waited_s,
)
from airflow_provider_dtrain.store.queue.pass_snapshot import (
    FORGOTTEN_AFTER,
    SITUATION,
    decide,
    is_untidy,
    next_due,
    notes,
    pool_machines,
    situation,
)
from airflow_provider_dtrain.store.queue.pass_writes import (
    AWAIT_PASS,
    LOOK,
    OPENING,
    PASSED,
    PREEMPT,
    TELL_GRANTED,
    grants,
    noted,
    raise_token,
)
from airflow_provider_dtrain.store.queue.shared_passes import Turn, join_turn
from airflow_provider_dtrain.store.queue.slot_release import (
    ALLOCATION,
    ALLOCATION_OF_ATTEMPT,
    HOSTS_OF_ATTEMPT,
    held_rows,
)
from airflow_provider_dtrain.store.queue.transitions import Ending
from airflow_provider_dtrain.store.records.queue import PassResult
from airflow_provider_dtrain.store.records.trials import Proof
from airflow_provider_dtrain.store.views import run_name, store_mark
from airflow_provider_dtrain.store.wakeup.pg_notify import granted_messages

#: Most tries of a caller whose pass failed or met the passes of other processes.
TURNS = 5
#: Grants that a store can have lost with its last backup: a thousand per second for 34 years.
MOST_RAISE = 2**40
#: Highest token that a host can raise the counter to. Supervisors accept 10**18, so most of the tokens stay free.
TOKEN_LIMIT = 2**56
_TRIAL = Statement(sa.select(trials).where(trials.c.id == sa.bindparam("trial")))
_TAKE_UP = Statement(
    allocations.update()
    .where(allocations.c.id == sa.bindparam("gang"), allocations.c.state == "granted")
    .values(state="starting")
    .returning(allocations.c.token)
)
_FORGET_RANKS = Statement(ranks.delete().where(ranks.c.attempt_id == sa.bindparam("attempt")))
#: The newest attempt of the allocation of an attempt.
_NEWEST = Statement(
    sa.select(sa.func.max(attempts.c.id).label("id")).where(attempts.c.allocation_id == ALLOCATION_OF_ATTEMPT)
)

__all__ = ["FORGOTTEN_AFTER", "Queue", "held_hosts", "pool_machines"]


class Queue(Ending):
    """Queue of requests for slots. Any waiter runs the scheduling passes, without a daemon."""

    def schedule(self, pool: str) -> PassResult:
        """Run a scheduling pass that grants all requests of a pool that can be granted now.

        This is one indexed read when nothing changed since the last pass. While another thread or process runs a
        pass, the caller waits for that pass, which serves every request that was committed before the call.

        :raises NotFoundError: the pool does not exist
        """
        result = PassResult(granted=(), waiting=0)
        for _ in range(TURNS):
            is_due, waiting = self._look(pool)
            result = PassResult(granted=(), waiting=waiting)
            if not is_due:
                return result
            turn, is_mine = join_turn(str(self._engine.url), pool)
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
                is_due, waiting = self._look(pool)
                found = None if is_due else PassResult(granted=(), waiting=waiting)
            if found is not None:
                turn.waiting = found.waiting
                return found
        return PassResult(granted=(), waiting=waiting)

    def _look(self, pool: str) -> tuple[bool, int]:
        """Return whether a pass is due, and the number of waiting requests."""
        found = reading(lambda: statements.look(self._reader, LOOK, {"pool_name": pool}))
        if not found:
            self._refuse_unknown(pool)
        return _is_due(found[0], self._now()), int(found[0].waiting)

    @reads
    def _refuse_unknown(self, conn: Connection, pool: str) -> None:
        lock_pool(conn, pool)

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
        now, values = self._now(), {"pool_name": pool}
        locked, *rows = statements.read(conn, OPENING, {**values, "now": now})
        if not locked:
            return None
        if not locked[0].is_due:
            return PassResult(granted=(), waiting=locked[0].waiting)
        options = options_of(locked[0])
        found = situation(rows, options, now)
        if is_untidy(found):
            self._tidy(conn, pool, now)
            found = situation(statements.read(conn, SITUATION, values), options, now)
        decision = decide(found)
        granted = tuple(int(request_id) for request_id, _ in decision.grants)
        preempted = tuple(int(victim) for victim, _ in decision.preemptions)
        left = len(found.waiting) - len(granted)
        orders = grants(conn, found, decision)
        orders.append((PREEMPT, [
            {"of": int(victim), "for_whom": int(claimant), "now": now} for victim, claimant in decision.preemptions
        ]))  # fmt: skip
        orders += noted(conn, notes(found, decision, granted))
        orders.append((PASSED, [{**values, "due": next_due(found, decision, granted), "left": left}]))
        if conn.dialect.name == "postgresql":
            orders.append((TELL_GRANTED, granted_messages(pool, granted)))
        statements.write(conn, orders)
        return PassResult(granted=granted, waiting=left, preempted=preempted)

    def _tidy(self, conn: Connection, pool: str, now: datetime) -> None:
        self._end_expired_gangs(conn, pool, now, FORGOTTEN_AFTER)
        self._take_back(conn, pool, now)
        self._remove_forgotten(conn, pool, now)

    def _take_back(self, conn: Connection, pool: str, now: datetime) -> None:
        """Return grants that were not taken up to the queue. No process was started under them."""
        where = (
            allocations.c.pool == pool,
            allocations.c.state == "granted",
            allocations.c.granted_at <= now - UNTAKEN_AFTER,
        )
        for row in conn.execute(sa.select(allocations).where(*where)).all():
            self._ungrant(conn, row, "its task did not take up the grant within 30 s")

    def _remove_forgotten(self, conn: Connection, pool: str, now: datetime) -> None:
        forgotten = (allocations.c.pool == pool, allocations.c.state == "waiting")
        query = sa.select(attempts).join(allocations, allocations.c.id == attempts.c.allocation_id)
        late = allocations.c.renewed_at <= now - FORGOTTEN_AFTER
        for attempt in conn.execute(query.where(*forgotten, late, attempts.c.ended_at.is_(None))).all():
            message = "The request was not renewed for 24 h: its task is gone."
            self._end(conn, attempt, "errored", {"error": "StoreError", "kind": "platform", "message": message}, None)

    @writes
    def renew_request(self, conn: Connection, attempt_id: int, watch: int) -> None:
        """Renew the request for this attempt's gang.

        :raises StaleWatchError: the watch is not current
        :raises UnplaceableError: no set of the pool's hosts can serve it now, and the submission says to fail then
        """
        _, row = guard_gang(conn, attempt_id, watch)
        renew_waiting(conn, row, self._now())

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
        self._set_attempt(conn, attempt, "starting")
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
        if row.trial_id is None:
            self._require_confirmed(conn, row, attempt_id)
            self._leave_gang(conn, row, attempt_id)
            return self._set_waiting(conn, attempt, reason)
        held = sorted(entry.host for entry in hosts if entry.held)
        if held and row.state != "granted":
            raise ConflictError(
                f"Attempt {attempt_id} cannot wait again: hosts {', '.join(held)} have not confirmed that its "
                "processes have ended. Fence and release these hosts first."
            )
        if row.state != "released":
            self._release_host(conn, row.id, None, "untaken")
        self._exclude(conn, attempt.trial_id, exclude_host)
        self._wait_again(conn, attempt, row, reason)

    def _wait_again(self, conn: Connection, attempt: Row[Any], row: Row[Any], reason: str) -> None:
        """Give an attempt whose gang is released a new request in the old place."""
        self._set_waiting(conn, attempt, reason)
        new = self._request_again(conn, row, reason)
        statements.update(conn, attempts, attempt.id, allocation_id=new)

    def _set_waiting(self, conn: Connection, attempt: Row[Any], reason: str) -> None:
        self._set_attempt(conn, attempt, "waiting", plan=None, master=None, reason=reason, started_at=None)
        statements.send(conn, _FORGET_RANKS, {"attempt": attempt.id})

    def _exclude(self, conn: Connection, trial_id: int, host: str | None, at_least: timedelta | None = None) -> None:
        """Exclude a host for a trial from now on.

        :param at_least: time for which this holds even if no other host could serve it; None = ``EXCLUDED_FOR``
        """
        if host is None:
            return
        old = conn.scalar(sa.select(trials.c.excluded).where(trials.c.id == trial_id)) or []
        new = {"host": host, "until_s": (self._now() + (at_least or EXCLUDED_FOR)).timestamp()}
        excluded = [entry for entry in old if entry["host"] != host] + [new]
        conn.execute(trials.update().where(trials.c.id == trial_id).values(excluded=excluded))

    def _request_again(
        self, conn: Connection, row: Row[Any], reason: str, *, held_until: datetime | None = None
    ) -> int:
        """Create a waiting request with place and counters of an older one, and return its id.

        The trial is queued again, or paused if a user has requested that.

        :param held_until: time at which the older one's gang ended; None = now
        """
        now = self._now()
        until = min(moment for moment in (held_until, row.ended_at, now) if moment is not None)
        trial = statements.first(conn, _TRIAL, {"trial": row.trial_id})
        is_paused = trial.pause_requested_at is not None
        values = {name: getattr(row, name) for name in KEPT_BY_REQUESTS}
        if trial.state != "queued":
            self._set_trial(conn, trial.id, "queued", ended_at=None, failure=None)
        if is_paused:
            self._set_trial(conn, trial.id, "paused")
        bump(conn, row.pool)
        return statements.insert(
            conn, allocations, **values, state="waiting", renewed_at=now,
            reason=paused_by(conn, trial) if is_paused else reason, held_s=held_s(row, until),
            waited_s=waited_s(row, until), paused=is_paused, eligible_since=None if is_paused else now,
        )  # fmt: skip

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
        names = [host] if isinstance(host, str) else list(host)
        if row.trial_id is None:
            for name in names:
                row = statements.first(conn, ALLOCATION, {"gang": row.id})
                self._confirm(conn, row, attempt_id, name, proof)
            return
        if newest.id != attempt_id:
            raise StaleWatchError(
                f"Attempt {newest.id} continues with the gang of attempt {attempt_id}, so its slots stay held."
            )
        known = {entry.host for entry in hosts}
        if strangers := sorted(set(names) - known):
            words = "', '".join(strangers)
            raise NotFoundError(
                f"Attempt {attempt_id} never held slots on '{words}'. Hosts of its gang: {', '.join(sorted(known))}."
            )
        held = {entry.host for entry in hosts if entry.held}
        self._release_host(conn, row.id, None if held <= set(names) else names, proof)

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


def _is_due(row: Any, now: datetime) -> bool:
    return row.version != row.passed_version or (row.next_due_at is not None and now >= row.next_due_at)


def renew_waiting(conn: Connection, row: Row[Any], now: datetime) -> None:
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


def held_hosts(conn: Connection, allocation_id: int, *, released: bool = False) -> set[str]:
    """Return the hosts on which an allocation holds slots.

    :param released: True: also the hosts that are released already
    """
    where = [allocation_slots.c.allocation_id == allocation_id, *(() if released else (held_rows(),))]
    return set(conn.scalars(sa.select(allocation_slots.c.host).where(*where)))
