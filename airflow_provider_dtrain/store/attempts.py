"""Attempts: their followers, and their states from the grant to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import ACTIVE, TRIAL_SUCCEEDED, AttemptState
from airflow_provider_dtrain.core.lifecycle.timeline import TimelineKind
from airflow_provider_dtrain.core.lifecycle.timing import AWAY_FOR
from airflow_provider_dtrain.errors import ConflictError, NotFoundError, StaleWatchError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import AllocationRow, AttemptRow
from airflow_provider_dtrain.store.database.tables import allocations, attempts, experiments, gangs, ranks, trials
from airflow_provider_dtrain.store.database.transactions import (
    Database,
    bump,
    count,
    guard,
    lock_gang,
    lock_pool,
    lock_pool_of,
    reads,
    set_back,
    writes,
)
from airflow_provider_dtrain.store.meter import Metric
from airflow_provider_dtrain.store.queue.feasibility import never_reason
from airflow_provider_dtrain.store.queue.held_gangs import last_users, pass_gang_on, stay_with_gang
from airflow_provider_dtrain.store.queue.requeue import exclude, request_again, set_waiting, wait_again
from airflow_provider_dtrain.store.queue.slot_release import held_hosts, move_allocation, set_allocation
from airflow_provider_dtrain.store.queue.transitions import (
    end_attempt,
    expire,
    mark_of,
    set_attempt,
    set_trial,
    ungrant,
)
from airflow_provider_dtrain.store.records.trials import HANDED_OVER, AttemptView, EndState, Ticket, TrialKey
from airflow_provider_dtrain.store.timeline.notes import note_build, note_once, set_note_value
from airflow_provider_dtrain.store.trials import ticket_of
from airflow_provider_dtrain.store.views import attempt_view, attempt_views

#: The pool of a waiting attempt without a follower.
_HANDED_OVER = (
    sa.select(allocations.c.pool)
    .join(attempts, attempts.c.allocation_id == allocations.c.id)
    .where(attempts.c.id == sa.bindparam("attempt"), attempts.c.state == "waiting", attempts.c.watcher == HANDED_OVER)
)


class Attempts:
    """Attempts of trials. Every write carries the watch, so a process with a stale one changes nothing."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def get(self, conn: Connection, attempt_id: int) -> AttemptView:
        """Return an attempt with all state that a follower needs to continue it.

        :raises NotFoundError: there is no attempt with this id
        """
        found = attempt_view(conn, attempt_id)
        if found is None:
            raise NotFoundError(f"There is no attempt {attempt_id}.")
        return found

    @reads
    def of_trial(self, conn: Connection, trial_id: int) -> list[AttemptView]:
        """Return all attempts of a trial, oldest first."""
        return attempt_views(conn, attempts.c.trial_id == trial_id)

    @reads
    def older(self, conn: Connection, key: TrialKey, trial_index: int = 0) -> list[AttemptView]:
        """Return live attempts of the same task instance from before it was cleared.

        :param trial_index: of the trial that they were attempts of, among those of the task instance
        """
        same = ("dag_id", "run_id", "task_id", "map_index")
        where = [trials.c[name] == getattr(key, name) for name in same]
        where += [trials.c.trial_index == trial_index, trials.c.max_tries != key.max_tries]
        where += [attempts.c.ended_at.is_(None)]
        return attempt_views(conn, sa.and_(*where))

    @writes
    def watch(self, conn: Connection, attempt_id: int, *, watcher: str) -> int:
        """Take over an attempt and return the watch that all further writes must carry.

        The next pass may grant slots to a request that was handed over and has a follower now.

        :param watcher: name of the new follower, for messages
        :raises NotFoundError: there is no such attempt
        """
        handed_over = statements.first(conn, _HANDED_OVER, {"attempt": attempt_id})
        if handed_over is not None:
            lock_pool(conn, handed_over.pool)
            bump(conn, handed_over.pool)
        values = {"watch": attempts.c.watch + 1, "watcher": watcher, "renewed_at": self.db.now()}
        query = attempts.update().where(attempts.c.id == attempt_id).values(**values)
        found = conn.scalar(query.returning(attempts.c.watch))
        if found is None:
            raise NotFoundError(f"There is no attempt {attempt_id}.")
        return int(found)

    @writes
    def hand_over(self, conn: Connection, attempt_id: int, watch: int) -> None:
        """Release an attempt for the next follower, which makes this watch stale.

        A grant that this follower has not taken up returns to the queue, because no process would start its gang.

        :raises StaleWatchError: the watch is not current
        """
        _, row, _ = lock_gang(conn, attempt_id, watch)
        now = self.db.now()
        if row.state == "granted":
            ungrant(conn, now, row, "its task moved to the triggerer")
        values = {"watch": watch + 1, "watcher": HANDED_OVER, "renewed_at": now}
        conn.execute(attempts.update().where(attempts.c.id == attempt_id).values(**values))

    @writes
    def renew(self, conn: Connection, watches: Mapping[int, int]) -> set[int]:
        """Renew leases and return the attempts whose watch is still current and which hold their gang.

        A waiting attempt has no run, even if its follower knew one before the store lost its last commits.

        :param watches: attempt -> watch
        """
        if not watches:
            return set()
        pairs = sa.tuple_(attempts.c.id, attempts.c.watch).in_(list(watches.items()))
        where = (pairs, attempts.c.state.in_(ACTIVE))
        # Locked in one order, so that two followers of the same attempts cannot deadlock.
        current = set(conn.scalars(sa.select(attempts.c.id).where(*where).order_by(attempts.c.id).with_for_update()))
        if current:
            conn.execute(attempts.update().where(attempts.c.id.in_(current)).values(renewed_at=self.db.now()))
        return current

    @reads
    def stale(self, conn: Connection, older_than_s: float) -> list[AttemptView]:
        """Return attempts that hold slots and whose lease was not renewed for ``older_than_s`` seconds."""
        before = self.db.now() - timedelta(seconds=older_than_s)
        live = attempts.c.state.in_(ACTIVE)
        return attempt_views(conn, sa.and_(live, attempts.c.renewed_at < before))

    @reads
    def unreleased(self, conn: Connection) -> list[AttemptView]:
        """Return ended attempts with hosts that have not confirmed that all their processes have ended."""
        return attempt_views(conn, sa.and_(allocations.c.state == "expired", last_users()))

    @reads
    def check_watch(
        self, conn: Connection, attempt_id: int, watch: int, *, followed: AttemptView | None = None
    ) -> None:
        """Check that a watch is current.

        :param followed: the attempt as it was when this process began to follow its run
        :raises StaleWatchError: another process follows the attempt
        :raises StoreSetBackError: the store has lost the watch, the attempt or the grant of its run
        """
        query = (
            sa.select(attempts.c.watch, attempts.c.created_at, allocations.c.token)
            .join(allocations, allocations.c.id == attempts.c.allocation_id)
            .where(attempts.c.id == attempt_id)
        )
        found = conn.execute(query).one_or_none()
        if found is None:
            raise set_back(attempt_id, "the attempt is missing")
        if found.watch < watch:
            raise set_back(attempt_id, f"its watch is {found.watch} in the store, but was {watch}")
        # A number that was assigned again belongs to another attempt, whatever its watch is.
        if followed is not None and found.created_at != followed.created_at:
            raise set_back(attempt_id, "its number was assigned again")
        if found.watch != watch:
            raise StaleWatchError(
                f"Attempt {attempt_id} is followed under watch {found.watch}: this process still holds watch {watch} "
                "and must stop."
            )
        if followed is not None and found.token != followed.token:
            raise set_back(attempt_id, f"the grant of its run {followed.run} is missing")

    @reads
    def silent_for_s(self, conn: Connection, attempt_id: int) -> float:
        """Return the seconds since the last sign of life of an attempt's follower or waiter.

        :raises NotFoundError: there is no such attempt
        """
        query = (
            sa.select(attempts.c.renewed_at, attempts.c.state, allocations.c.renewed_at.label("asked_at"))
            .join(allocations, allocations.c.id == attempts.c.allocation_id)
            .where(attempts.c.id == attempt_id)
        )
        row = conn.execute(query).one_or_none()
        if row is None:
            raise NotFoundError(f"There is no attempt {attempt_id}.")
        times = [row.renewed_at, row.asked_at if row.state == "waiting" else None]
        latest = max((time for time in times if time is not None), default=None)
        return float("inf") if latest is None else (self.db.now() - latest).total_seconds()

    @writes
    def set_plan(
        self, conn: Connection, attempt_id: int, watch: int, plan: Mapping[str, Any], master: Any = None
    ) -> None:
        """Store the launch plan, so that the next follower starts the same processes.

        :param plan: host -> plan, or an object whose ``plans`` is that; ``ranks`` of each plan become rows
        :param master: address of rank 0, when it is not part of the plan
        :raises StaleWatchError: the watch is not current
        """
        attempt = guard(conn, attempt_id, watch)
        conn.execute(attempts.update().where(attempts.c.id == attempt.id).values(plan=plan, master=master))
        rows = [
            {
                "attempt_id": attempt_id,
                "rank": rank["rank"],
                "host": host,
                "local_rank": rank.get("local_rank", 0),
                "slot": rank.get("slot", -1),
            }
            for host, part in (plan.get("plans") or plan).items()
            for rank in (part.get("ranks", ()) if isinstance(part, Mapping) else ())
        ]
        if rows:
            insert = self.db.insert(ranks)
            keep = {name: insert.excluded[name] for name in ("host", "local_rank", "slot")}
            values = {**keep, "runtime": None}
            conn.execute(insert.on_conflict_do_update(index_elements=["attempt_id", "rank"], set_=values), rows)

    @writes
    def note_build(
        self, conn: Connection, attempt_id: int, watch: int, host: str, message: str, *, is_ready: bool | None = None
    ) -> None:
        """Record the progress or the end of the build of an environment. Meanwhile it is the reason of the attempt.

        :param is_ready: True or False: the build has succeeded or failed; None: it goes on
        :raises StaleWatchError: the watch is not current
        """
        attempt = guard(conn, attempt_id, watch)
        open_hosts = note_build(conn, self.db.now(), attempt.trial_id, attempt_id, host, message, is_ready=is_ready)
        more = f" ({len(open_hosts) - 1} more host(s) build it too)" if len(open_hosts) > 1 else ""
        reason = f"Host {open_hosts[0][0]} builds the environment: {open_hosts[0][1]}{more}" if open_hosts else ""
        conn.execute(attempts.update().where(attempts.c.id == attempt_id).values(reason=reason))

    @writes
    def set_running(self, conn: Connection, attempt_id: int, watch: int) -> None:
        """Record that the ranks were started. Repeatable.

        :raises StaleWatchError: the watch is not current
        """
        attempt = guard(conn, attempt_id, watch)
        if attempt.state == "running":
            return
        set_attempt(conn, attempt, AttemptState.RUNNING, started_at=self.db.now())
        move_allocation(conn, attempt.allocation_id, "starting", "running")
        set_trial(conn, attempt.trial_id, "running")

    @writes
    def set_stopping(
        self, conn: Connection, attempt_id: int, watch: int, reason: str, *, evacuated_from: str | None = None
    ) -> None:
        """Record that the gang is being stopped. Repeatable.

        :param reason: why, in words
        :param evacuated_from: the host that its gang leaves, None for another reason
        :raises StaleWatchError: the watch is not current
        """
        attempt = guard(conn, attempt_id, watch)
        set_attempt(conn, attempt, AttemptState.STOPPING, reason=reason)
        if evacuated_from is not None:
            kind, now = TimelineKind.EVACUATED, self.db.now()
            note_once(conn, attempt.trial_id, kind, now, attempt_id=attempt_id, host=evacuated_from, message=reason)
        old = str(conn.scalar(sa.select(allocations.c.state).where(allocations.c.id == attempt.allocation_id)))
        if old in {"granted", "starting", "running"}:
            set_allocation(conn, attempt.allocation_id, old, "stopping")

    @writes
    def next(
        self, conn: Connection, attempt_id: int, watch: int, *, failure: Mapping[str, Any], counted: bool
    ) -> Ticket:
        """End an attempt and create the trial's next one.

        The next attempt keeps the gang and its token while every host of the gang is still held. Otherwise, and if
        the attempt has ended already, it waits for a new gang and keeps its place in the queue.

        :param failure: why the attempt ended
        :param counted: whether it counts against ``max_restarts``
        :raises StaleWatchError: the watch is not current
        :raises ConflictError: the trial has ended for good
        """
        lock_pool_of(conn, attempt_id)
        attempt = guard(conn, attempt_id, watch)
        return _next(conn, self.db.now(), attempt, failure, counted=counted, keep=True)

    @writes
    def move_on(
        self,
        conn: Connection,
        attempt_id: int,
        watch: int,
        *,
        failure: Mapping[str, Any],
        exclude_host: str | None,
        also: Sequence[str] = (),
        away: bool = False,
    ) -> Ticket | None:
        """Let a trial wait for other hosts after a host failed.

        Return None, and change nothing, when no other hosts could serve the trial. An attempt that never ran waits
        again itself if a host is excluded, otherwise the trial's next attempt does. Hosts that were not released keep
        their slots: the old gang is ``expired``.

        :param failure: why the attempt cannot continue
        :param exclude_host: the failed host, which is excluded for this trial. None: it may be used again, and the
            attempt records its failure
        :param also: further hosts to exclude
        :param away: True: the hosts did not answer; a trial that no other hosts could serve waits until they do
        :raises StaleWatchError: the watch is not current
        """
        pool = lock_pool_of(conn, attempt_id)
        attempt = guard(conn, attempt_id, watch)
        row = conn.execute(sa.select(allocations).where(allocations.c.id == attempt.allocation_id)).one()
        if row.trial_id is None:
            return None
        excluded = conn.scalar(sa.select(trials.c.excluded).where(trials.c.id == attempt.trial_id)) or []
        names = {entry["host"] for entry in excluded} | {exclude_host, *also}
        are_needed = never_reason(conn, pool, row, without=names) is not None
        if are_needed and not away:
            return None
        now = self.db.now()
        for host in (exclude_host, *also):
            exclude(conn, now, attempt, host, str(failure.get("message", "")), AWAY_FOR if are_needed else None)
        if attempt.state == "starting" and not held_hosts(conn, row.id):
            reason = str(failure.get("message", ""))
            if exclude_host is not None:
                wait_again(conn, now, attempt, row, reason)
                return ticket_of(conn, attempt_id)
            # Neither a log nor outputs belong to its launch.
            set_waiting(conn, attempt, reason)
        return _next(conn, now, attempt, failure, counted=False, keep=False)

    @writes
    def yield_gang(
        self,
        conn: Connection,
        attempt_id: int,
        watch: int,
        *,
        reason: str,
        paused: bool,
        failure: Mapping[str, Any] | None = None,
        left_at: int | None = None,
    ) -> Ticket:
        """End an attempt that released its gang for a preemption or a pause. Repeatable.

        Its trial waits again, with its place in the queue and its counters. This is no failure and is not counted.
        Hosts that were not released keep their slots: the old gang is ``expired``.

        :param reason: why it had to release the gang, in words
        :param paused: True: because a user paused the trial. Whether the trial waits or stays paused follows from
            the requests in the store at this time.
        :param failure: the death of a rank in a shard on the way out, which counts for the shard
        :param left_at: the last step that its ranks finished, None if they did not report it
        :raises StaleWatchError: the watch is not current
        :raises ConflictError: the attempt has ended otherwise, or its gang is held for several tasks
        """
        lock_pool_of(conn, attempt_id)
        attempt = guard(conn, attempt_id, watch)
        newest = sa.select(attempts.c.id).where(attempts.c.trial_id == attempt.trial_id)
        last = int(conn.scalar(newest.order_by(attempts.c.number.desc()).limit(1)) or 0)
        if attempt.state == "preempted" and last != attempt_id:
            return ticket_of(conn, last)
        if attempt.ended_at is not None:
            raise ConflictError(f"Attempt {attempt_id} is {attempt.state}: it has no gang to release.")
        if conn.scalar(sa.select(gangs.c.allocation_id).where(gangs.c.allocation_id == attempt.allocation_id)):
            raise ConflictError(f"Attempt {attempt_id} cannot release its gang: it is held for several tasks.")
        if attempt.state == "starting":
            set_attempt(conn, attempt, AttemptState.STOPPING)
            attempt = guard(conn, attempt_id, watch)
        now = self.db.now()
        died = {"failure": failure} if failure is not None else {}
        set_attempt(conn, attempt, AttemptState.PREEMPTED, reason=reason, ended_at=now, **died)
        set_note_value(conn, attempt.trial_id, TimelineKind.EVACUATED, attempt_id, left_at)
        row = conn.execute(sa.select(allocations).where(allocations.c.id == attempt.allocation_id)).one()
        expire(conn, now, row)
        new = request_again(conn, now, row, "" if paused else reason, held_until=now)
        return _follow_with(conn, now, attempt, new, "waiting")

    @writes
    def set_cost(self, conn: Connection, attempt_id: int, watch: int, seconds: float) -> None:
        """Store the cost of a checkpoint and a restart of this trial.

        :param seconds: as measured
        :raises StaleWatchError: the watch is not current
        """
        attempt = guard(conn, attempt_id, watch)
        where = allocations.c.id == attempt.allocation_id
        conn.execute(allocations.update().where(where).values(cost_s=max(0.0, seconds)))

    @writes
    def end(
        self,
        conn: Connection,
        attempt_id: int,
        watch: int,
        *,
        state: EndState,
        failure: Mapping[str, Any] | None = None,
        result: Mapping[str, Any] | None = None,
    ) -> None:
        """End an attempt, its trial, and the experiment when all its trials have ended. Repeatable.

        A waiting request is removed. Slots that hosts have not confirmed as clear stay held.

        :param result: of the trial; None keeps the result that rank 0 sent
        :raises StaleWatchError: the watch is not current
        """
        lock_pool_of(conn, attempt_id)
        attempt = guard(conn, attempt_id, watch)
        if attempt.ended_at is None:
            end_attempt(conn, self.db.now(), attempt, state, failure, result)


def _next(
    conn: Connection, now: datetime, attempt: AttemptRow, failure: Mapping[str, Any], *, counted: bool, keep: bool
) -> Ticket:
    trial = conn.execute(sa.select(trials).where(trials.c.id == attempt.trial_id).with_for_update()).one()
    newest = conn.scalar(sa.select(sa.func.max(attempts.c.number)).where(attempts.c.trial_id == trial.id))
    # A trial that Airflow killed continues if Airflow runs the task again; a trial that a user killed does not.
    is_over = trial.state in TRIAL_SUCCEEDED or (trial.state == "killed" and trial.kill_requested_by)
    if is_over or attempt.number != newest:
        raise ConflictError(f"Trial {trial.id} is {trial.state} and at attempt {newest}: it gets no next attempt.")
    if attempt.ended_at is None:
        mark = mark_of("errored", failure, attempt.state)
        set_attempt(conn, attempt, mark, failure=failure, ended_at=now)
    row = conn.execute(sa.select(allocations).where(allocations.c.id == attempt.allocation_id)).one()
    keep = keep and attempt.ended_at is None
    if row.trial_id is None:
        allocation_id = row.id
        state = stay_with_gang(conn, now, row, attempt, keep=keep)
        if state == "waiting" and trial.state != "queued":
            set_trial(conn, trial.id, "queued", ended_at=None, failure=None, result=None)
    else:
        allocation_id, state = _gang_for_next(conn, now, row, keep=keep, ended_at=attempt.ended_at)
    if state == "waiting":
        again = {"state": "running", "ended_at": None, "archived": False}
        of = (experiments.c.id == trial.experiment_id, experiments.c.delete_requested_at.is_(None))
        if not conn.execute(experiments.update().where(*of).values(**again)).rowcount:
            raise ConflictError(f"The experiment of trial {trial.id} is being deleted: it gets no next attempt.")
    restarts = trial.restarts + int(counted)
    conn.execute(trials.update().where(trials.c.id == trial.id).values(restarts=restarts))
    if counted:
        count(conn, Metric.RESTARTS, pool_name=row.pool, dag_id=trial.dag_id)
    ticket = _follow_with(conn, now, attempt, allocation_id, state)
    if row.trial_id is None:
        pass_gang_on(conn, row, attempt.id, ticket.attempt_id)
    return ticket


def _follow_with(conn: Connection, now: datetime, attempt: AttemptRow, allocation_id: int, state: str) -> Ticket:
    query = attempts.insert().values(
        trial_id=attempt.trial_id,
        number=attempt.number + 1,
        allocation_id=allocation_id,
        state=state,
        created_at=now,
        renewed_at=now,
    )
    return ticket_of(conn, int(conn.scalar(query.returning(attempts.c.id)) or 0))


def _gang_for_next(
    conn: Connection, now: datetime, row: AllocationRow, *, keep: bool, ended_at: datetime | None
) -> tuple[int, str]:
    """Return the next attempt's allocation and state: the gang it keeps, or a new request."""
    all_hosts = held_hosts(conn, row.id, released=True)
    held = held_hosts(conn, row.id)
    if keep and held and held == all_hosts and row.state != "released":
        set_allocation(conn, row.id, row.state, "starting")
        # The slots do not become free after all.
        bump(conn, row.pool)
        return int(row.id), "starting"
    expire(conn, now, row)
    return request_again(conn, now, row, "", held_until=ended_at), "waiting"
