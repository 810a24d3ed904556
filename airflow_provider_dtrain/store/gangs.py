"""Held gangs, which one task requests and later tasks use: request, use and end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.core.lifecycle.states import AttemptState
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.core.scheduling.pending_reason import count
from airflow_provider_dtrain.errors import (
    GangEndedError,
    GangMismatchError,
    StaleWatchError,
    StoreSetBackError,
    UnplaceableError,
    UserError,
)
from airflow_provider_dtrain.store.database.rows import AllocationRow, GangRow, PoolRow, columns_of, record_of
from airflow_provider_dtrain.store.database.tables import allocations, attempts, gangs
from airflow_provider_dtrain.store.database.transactions import (
    Database,
    bump,
    guard,
    lock_pool,
    lock_pool_of,
    reads,
    writes,
)
from airflow_provider_dtrain.store.queue.feasibility import never_reason
from airflow_provider_dtrain.store.queue.held_gangs import (
    check_gang,
    end_held_gang,
    held_gang,
    set_gang,
)
from airflow_provider_dtrain.store.queue.requests import renew_waiting
from airflow_provider_dtrain.store.queue.slot_release import held_hosts, set_allocation
from airflow_provider_dtrain.store.queue.transitions import set_attempt, ungrant
from airflow_provider_dtrain.store.records.gangs import GangSubmission, GangView
from airflow_provider_dtrain.store.records.trials import HANDED_OVER, Ticket, TrialKey, TrialSubmission
from airflow_provider_dtrain.store.timeline.notes import note
from airflow_provider_dtrain.store.trials import experiment_of, hands_over, insert_trial, submitted, ticket_of
from airflow_provider_dtrain.store.views import key_of, placements, run_name, store_mark

_TASK = ("dag_id", "run_id", "task_id", "map_index")


class Gangs:
    """Held gangs. Every write of the task that requested one carries the gang's own watch."""

    def __init__(self, db: Database) -> None:
        self.db = db

    # -- requesting one -------------------------------------------------------------------------
    @writes
    def submit(self, conn: Connection, submission: GangSubmission) -> GangView:
        """Return the gang of a key, with a new waiting request unless the key has a live gang.

        :raises NotFoundError: the pool does not exist
        :raises UserError: slots, priority or the time to hold it are out of range
        :raises UnplaceableError: the pool can never serve it; nothing is written
        """
        if submission.slots < 0 or not 1 <= submission.priority <= 99 or submission.hold_for_s <= 0:
            raise UserError(
                "slots must be 0 or more, priority 1 to 99 and the time to hold the gang above 0 s, got "
                f"{submission.slots} slots at priority {submission.priority}, held for {submission.hold_for_s:g} s."
            )
        pool = lock_pool(conn, submission.pool)
        where = [*_of_task(submission.key), gangs.c.max_tries == submission.key.max_tries]
        newest = conn.execute(sa.select(gangs).where(*where).order_by(gangs.c.allocation_id.desc()).limit(1)).first()
        if newest is not None and newest.ended_because is None:
            return _view(conn, newest.allocation_id)
        _refuse_unplaceable(conn, submission, pool)
        now = self.db.now()
        query = allocations.insert().values(
            **columns_of(submission, allocations),
            backend=pool.backend,
            state="waiting",
            submitted_at=now,
            requested_at=now,
            renewed_at=now,
            eligible_since=now,
            preemptible=False,
        )
        allocation_id = int(conn.scalar(query.returning(allocations.c.id)) or 0)
        first = allocations.update().where(allocations.c.id == allocation_id)
        conn.execute(first.values(sequence=allocations.c.id))
        own = {**vars(submission.key), **columns_of(submission, gangs)}
        conn.execute(gangs.insert().values(allocation_id=allocation_id, **own))
        bump(conn, submission.pool)
        return _view(conn, allocation_id)

    @reads
    def get(self, conn: Connection, allocation_id: int) -> GangView:
        """Return a held gang, or the request for one, even if it has ended.

        :raises GangEndedError: there is no gang with this id
        """
        return _view(conn, allocation_id)

    @reads
    def older(self, conn: Connection, key: TrialKey) -> list[GangView]:
        """Return gangs of a task instance from before it was cleared that hold slots or wait."""
        where = [*_of_task(key), gangs.c.max_tries != key.max_tries, allocations.c.state != "released"]
        query = sa.select(gangs.c.allocation_id).join(allocations, allocations.c.id == gangs.c.allocation_id)
        found = conn.scalars(query.where(*where).order_by(gangs.c.allocation_id)).all()
        return [_view(conn, allocation_id) for allocation_id in found]

    @writes
    def watch(self, conn: Connection, allocation_id: int, *, watcher: str) -> int:
        """Take over the request for a gang and return the watch that further writes must carry.

        The next pass may grant slots to a request that was handed over and has a waiter now.

        :param watcher: name of the new waiter, for messages
        :raises GangEndedError: there is no such gang
        """
        row = _locked_gang(conn, allocation_id)
        if row.state == "waiting" and held_gang(conn, allocation_id).watcher == HANDED_OVER:
            bump(conn, row.pool)
        query = gangs.update().where(gangs.c.allocation_id == allocation_id)
        found = conn.scalar(query.values(watch=gangs.c.watch + 1, watcher=watcher).returning(gangs.c.watch))
        if found is None:
            raise _no_gang(allocation_id)
        return int(found)

    @writes
    def hand_over(self, conn: Connection, allocation_id: int, watch: int) -> None:
        """Release the request for a gang for the next waiter, which makes this watch stale.

        A grant that this waiter has not taken up returns to the queue, because no process would hold the gang.

        :raises StaleWatchError: the watch is not current
        """
        row = _watched(conn, allocation_id, watch)
        if row.state == "granted":
            ungrant(conn, self.db.now(), row, "its task moved to the triggerer")
        query = gangs.update().where(gangs.c.allocation_id == allocation_id)
        conn.execute(query.values(watch=watch + 1, watcher=HANDED_OVER))

    @writes
    def renew(self, conn: Connection, allocation_id: int, watch: int) -> GangView:
        """Renew the request for a gang and return the gang.

        :raises StaleWatchError: the watch is not current
        :raises UnplaceableError: no set of the pool's hosts can serve it now, and the submission says to fail then
        :raises GangEndedError: the request was withdrawn
        """
        row = _watched(conn, allocation_id, watch)
        gang = held_gang(conn, allocation_id)
        now = self.db.now()
        if gang.ended_because is not None:
            check_gang(row, gang, row.token)
        renew_waiting(conn, row, now)
        return _view(conn, allocation_id)

    @writes
    def take_up(self, conn: Connection, allocation_id: int, watch: int) -> GangView | None:
        """Start to hold a granted gang and return it, None when it is not granted. Repeatable.

        :raises StaleWatchError: the watch is not current
        """
        row = _watched(conn, allocation_id, watch)
        if row.state == "granted":
            states.check("allocation", "starting", "running")
            set_allocation(conn, row.id, "granted", "starting")
            set_allocation(conn, row.id, "starting", "running")
            _hold(conn, self.db.now(), held_gang(conn, row.id))
            bump(conn, row.pool)
        view = _view(conn, allocation_id)
        return view if view.is_usable else None

    # -- using it -------------------------------------------------------------------------------
    @writes
    def submit_trial(self, conn: Connection, submission: TrialSubmission, token: int) -> Ticket:
        """Submit a trial that uses a held gang instead of requesting one.

        The same key returns the first ticket again.

        :param submission: ``allocation_id`` names the gang
        :param token: of the grant that the caller received
        :raises GangEndedError: the gang has ended, or the token is of an older grant
        :raises GangMismatchError: the gang is in another pool or has another number of slots
        """
        row = _locked_gang(conn, int(submission.allocation_id or 0))
        if (ticket := submitted(conn, submission)) is not None:
            return ticket
        gang = held_gang(conn, row.id)
        check_gang(row, gang, token)
        if (gang.dag_id, gang.run_id) != (submission.key.dag_id, submission.key.run_id):
            raise GangEndedError(
                f"Allocation {row.id} is held for DAG run '{gang.run_id}' of DAG '{gang.dag_id}', not for this run: "
                "the gang that this task received no longer exists. Was the store restored from a backup? Clear the "
                f"task '{gang.task_id}' of this run."
            )
        if (submission.slots, submission.pool) != (row.slots, row.pool):
            raise GangMismatchError(
                f"The configuration asks for {count(submission.slots, 'slot')} of pool '{submission.pool}', but the "
                f"held gang (allocation {row.id}) has {row.slots} of pool '{row.pool}'. Set "
                f"resources.slots_per_trial to {row.slots}, or hold a gang of another size."
            )
        now = self.db.now()
        experiment = experiment_of(conn, now, submission)
        is_handed_over = hands_over(conn, submission)
        trial_id = insert_trial(conn, now, submission, experiment)
        values = {"trial_id": trial_id, "number": 1, "allocation_id": row.id, "state": "waiting"}
        watcher = HANDED_OVER if is_handed_over else None
        query = attempts.insert().values(**values, watcher=watcher, created_at=now, renewed_at=now)
        attempt_id = int(conn.scalar(query.returning(attempts.c.id)) or 0)
        _hold(conn, now, gang)
        return replace(ticket_of(conn, attempt_id), is_new=True, is_handed_over=is_handed_over)

    @writes
    def use(self, conn: Connection, attempt_id: int, watch: int) -> str | None:
        """Start to use the held gang and return the run's name, None while another task uses it.

        :raises StaleWatchError: the watch is not current
        :raises GangEndedError: the gang has ended
        """
        lock_pool_of(conn, attempt_id)
        attempt = guard(conn, attempt_id, watch)
        row = conn.execute(sa.select(allocations).where(allocations.c.id == attempt.allocation_id)).one()
        now = self.db.now()
        gang = held_gang(conn, row.id)
        check_gang(row, gang, row.token)
        _hold(conn, now, gang)
        if gang.attempt_id not in {None, attempt_id}:
            reason = f"it waits for {_user_text(conn, gang.attempt_id)}, which uses the held gang"
            # The attempt is renewed as well, because it has no request of its own: the other task renews the gang's.
            waits = {"reason": reason, "renewed_at": now}
            conn.execute(attempts.update().where(attempts.c.id == attempt_id).values(**waits))
            return None
        if attempt.state == "waiting":
            set_gang(conn, row.id, attempt_id=attempt_id, unclear=sorted(held_hosts(conn, row.id)))
            set_allocation(conn, row.id, row.state, "starting")
            set_attempt(conn, attempt, AttemptState.STARTING, reason="")
            note(conn, attempt.trial_id, TimelineKind.GRANTED, now, attempt_id=attempt_id, value=row.token)
        return run_name(store_mark(conn), attempt.trial_id, attempt.number, int(row.token))

    # -- ending it ------------------------------------------------------------------------------
    @writes
    def end(self, conn: Connection, allocation_id: int, because: str, *, watch: int | None = None) -> GangView:
        """End a held gang, or withdraw its request, and return the updated gang. Repeatable.

        The slots of an unused gang are free afterwards. A gang in use must be fenced: end the attempt that uses it.

        :param because: why, in words
        :param watch: None = do not check which process waits for it
        :raises GangEndedError: there is no such gang
        :raises StaleWatchError: the watch is not current
        """
        row = _locked_gang(conn, allocation_id) if watch is None else _watched(conn, allocation_id, watch)
        end_held_gang(conn, self.db.now(), row, because)
        return _view(conn, allocation_id)

    def end_of_run(self, dag_id: str, run_id: str, because: str) -> list[int]:
        """End every gang of a DAG run and return their ids. No host is contacted."""
        found = self._gangs_of_run(dag_id, run_id)
        for allocation_id in found:
            self.end(allocation_id, because)
        return found

    @reads
    def _gangs_of_run(self, conn: Connection, dag_id: str, run_id: str) -> list[int]:
        where = (gangs.c.dag_id == dag_id, gangs.c.run_id == run_id, gangs.c.ended_because.is_(None))
        return list(conn.scalars(sa.select(gangs.c.allocation_id).where(*where).order_by(gangs.c.allocation_id)))


def _of_task(key: TrialKey) -> list[sa.ColumnElement[bool]]:
    return [gangs.c[name] == getattr(key, name) for name in _TASK]


def _no_gang(allocation_id: int) -> GangEndedError:
    return GangEndedError(f"There is no held gang {allocation_id} in the store.")


def _refuse_unplaceable(conn: Connection, submission: GangSubmission, pool: PoolRow) -> None:
    if submission.on_unplaceable == "wait":
        return
    if (reason := never_reason(conn, pool, submission)) is not None:
        raise UnplaceableError(reason)


def _hold(conn: Connection, now: datetime, gang: GangRow) -> None:
    until = now + timedelta(seconds=gang.hold_for_s)
    set_gang(conn, gang.allocation_id, held_until=until)


def _locked_gang(conn: Connection, allocation_id: int) -> AllocationRow:
    """Return the allocation of a gang, with its pool locked."""
    query = sa.select(allocations).where(allocations.c.id == allocation_id, allocations.c.trial_id.is_(None))
    found = conn.execute(query).one_or_none()
    if found is None:
        raise _no_gang(allocation_id)
    lock_pool(conn, found.pool)
    return conn.execute(query).one()


def _watched(conn: Connection, allocation_id: int, watch: int) -> AllocationRow:
    row = _locked_gang(conn, allocation_id)
    gang = held_gang(conn, allocation_id)
    if gang.watch < watch:
        message = f"its watch is {gang.watch} in the store, but was {watch}"
        raise StoreSetBackError(f"The store has lost the last commits of gang {allocation_id}: {message}.")
    if gang.watch != watch:
        raise StaleWatchError(
            f"The gang {allocation_id} is followed under watch {gang.watch} ({gang.watcher}): this process still "
            f"holds watch {watch} and must stop."
        )
    return row


def _user_text(conn: Connection, attempt_id: int) -> str:
    return f"trial {conn.scalar(sa.select(attempts.c.trial_id).where(attempts.c.id == attempt_id))}"


def _view(conn: Connection, allocation_id: int) -> GangView:
    query = sa.select(allocations, *(column for column in gangs.c if column.name != "allocation_id"))
    row = conn.execute(
        query.join(gangs, gangs.c.allocation_id == allocations.c.id).where(allocations.c.id == allocation_id)
    ).one_or_none()
    if row is None:
        raise _no_gang(allocation_id)
    placed = placements(conn, {row.id: row.token} if row.token is not None else {}).get(row.id, {})
    return record_of(
        GangView,
        row,
        allocation_id=row.id,
        key=key_of(row),
        placement={host: indices for host, (indices, _) in placed.items()},
        held_hosts=tuple(host for host, (_, held) in placed.items() if held),
    )
