"""Jobs of external schedulers: their submission, their state as last polled, and grants of their slots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.external_jobs import (
    EndKind,
    ExternalJob,
    JobEnd,
    JobPhase,
    JobStatus,
    end_of,
)
from airflow_provider_dtrain.core.lifecycle import states
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import AllocationRow
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    experiments,
    external_jobs,
    hosts,
    pools,
    searches,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import Database, bump, guard_gang, lock_pool, reads, writes
from airflow_provider_dtrain.store.hosts import insert_host
from airflow_provider_dtrain.store.queue.accounting import waited_s
from airflow_provider_dtrain.store.queue.pass_notes import shortest_s
from airflow_provider_dtrain.store.queue.pass_writes import BEGIN_REASON, GRANT, PLACE, raise_token
from airflow_provider_dtrain.store.queue.requests import end_forgotten
from airflow_provider_dtrain.store.queue.slot_release import ALLOCATION
from airflow_provider_dtrain.store.records.external_jobs import job_of_row
from airflow_provider_dtrain.store.records.trials import HostRecord
from airflow_provider_dtrain.store.timeline.notes import enter_wait
from airflow_provider_dtrain.store.views import store_mark

#: First and longest pause between two polls of a pool, and the factor between them.
POLL_FIRST_S, POLL_MOST_S, POLL_FACTOR = 5.0, 30.0, 1.6
#: Longest pause, and the factor, while the scheduler answers that it gets too many requests.
POLL_LIMITED_S, POLL_LIMITED_FACTOR = 300.0, 2.0
#: First pause while a single job of the pool waits: a user may watch it.
POLL_SINGLE_S = 1.0
#: A process that polls has this long to do so.
POLL_LEASE_S = 60.0
#: A job whose gang has ended ends by itself within this time, or is cancelled.
ENDS_WITHIN = timedelta(seconds=30)
#: A job that was cancelled and has not ended is cancelled again after this time.
CANCEL_AGAIN = timedelta(seconds=60)
#: A smaller change of the expected start is not written: schedulers estimate it anew with each of their passes.
MOVED = timedelta(seconds=60)
#: Shortest time in seconds for which the first reason of a wait gets an entry of its own. A job may start at once.
KEPT_FROM_S = 1.0
_LIVE = external_jobs.c.phase != JobPhase.ENDED


class ExternalJobs:
    """Jobs of external schedulers. The store only records them: :mod:`.engine.slots.external_slots` acts."""

    def __init__(self, db: Database) -> None:
        self.db = db

    # -- submission ----------------------------------------------------------------------------
    @writes
    def begin(self, conn: Connection, allocation_id: int, access: bytes, *, most: int | None) -> ExternalJob | str:
        """Return the live job of a request, which is created unless there is one, or why there can be none now.

        The caller follows the request. A process that takes over finds the same job, and looks for its name at the
        scheduler before it submits.

        :param access: encrypted secret of the channel to the nodes of a new job
        :param most: jobs that the pool may have at one time, None without a limit
        """
        row = _locked(conn, allocation_id)
        found = _newest(conn, allocation_id)
        if found is not None and not found.is_over:
            return found
        if (reason := _limit_reached(conn, row, most)) is not None:
            return reason
        number = conn.scalar(
            sa.select(sa.func.count()).select_from(external_jobs).where(external_jobs.c.allocation_id == allocation_id)
        )
        values = {
            "allocation_id": allocation_id,
            "pool": row.pool,
            "name": f"dtrain-{store_mark(conn)}-{_subject(row)}.{allocation_id}.{int(number or 0) + 1}",
            "phase": JobPhase.SUBMITTING,
            "access": access,
            "created_at": self.db.now(),
        }
        conn.execute(external_jobs.insert().values(**values))
        job = _newest(conn, allocation_id)
        assert job is not None
        return job

    @writes
    def submitting(self, conn: Connection, job_id: int) -> None:
        """Record that a job is about to be submitted. From now on, its scheduler may know it."""
        _set(conn, job_id, submitted_at=self.db.now())

    @writes
    def not_submitted(self, conn: Connection, job_id: int) -> None:
        """Record that the last submission of a job was certainly not accepted."""
        where = (external_jobs.c.id == job_id, external_jobs.c.phase == JobPhase.SUBMITTING)
        conn.execute(external_jobs.update().where(*where).values(submitted_at=None))

    @writes
    def submitted(self, conn: Connection, job_id: int, number: str) -> None:
        """Record the scheduler's number of a job, and make the next poll of its pool due."""
        where = (external_jobs.c.id == job_id, external_jobs.c.phase == JobPhase.SUBMITTING)
        values = {"number": number, "phase": JobPhase.WAITING}
        if conn.execute(external_jobs.update().where(*where).values(**values)).rowcount:
            pool = conn.scalar(sa.select(external_jobs.c.pool).where(external_jobs.c.id == job_id))
            first_s = _first_pause_s(conn, pool)
            conn.execute(pools.update().where(pools.c.name == pool).values(poll_every_s=first_s))
            bump(conn, str(pool))

    @writes
    def ended(self, conn: Connection, job_id: int, end: JobEnd) -> None:
        """Record the end of a job that its scheduler does not report, because it never knew it."""
        _set(conn, job_id, phase=JobPhase.ENDED, end=asdict(end), ended_at=self.db.now(), access=b"")

    # -- polls ---------------------------------------------------------------------------------
    @reads
    def of_allocation(self, conn: Connection, allocation_id: int) -> ExternalJob | None:
        """Return the newest job of an allocation, None without one."""
        return _newest(conn, allocation_id)

    @reads
    def former(self, conn: Connection, allocation_id: int) -> ExternalJob | None:
        """Return the newest job of the trial's earlier requests, None without one."""
        trial = sa.select(allocations.c.trial_id).where(allocations.c.id == allocation_id).scalar_subquery()
        query = (
            sa.select(external_jobs)
            .join(allocations, allocations.c.id == external_jobs.c.allocation_id)
            .where(allocations.c.trial_id == trial, allocations.c.id < allocation_id)
            .order_by(external_jobs.c.id.desc())
            .limit(1)
        )
        found = conn.execute(query).one_or_none()
        return None if found is None else job_of_row(found)

    @reads
    def get(self, conn: Connection, job_id: int) -> ExternalJob:
        """Return a job.

        :raises NotFoundError: the store has no such job
        """
        found = conn.execute(sa.select(external_jobs).where(external_jobs.c.id == job_id)).one_or_none()
        if found is None:
            raise NotFoundError(f"The store has no external job {job_id}.")
        return job_of_row(found)

    @reads
    def live(self, conn: Connection, pool: str | None) -> list[ExternalJob]:
        """Return the jobs of a pool that have not ended, by id.

        :param pool: None: of all pools
        """
        where = (_LIVE, sa.true() if pool is None else external_jobs.c.pool == pool)
        return [
            job_of_row(row) for row in conn.execute(sa.select(external_jobs).where(*where).order_by(external_jobs.c.id))
        ]

    @reads
    def of_trial(self, conn: Connection, trial_id: int) -> list[ExternalJob]:
        """Return the jobs that were made for a trial, by id. Those of a held gang are not among them."""
        query = (
            sa.select(external_jobs)
            .join(allocations, allocations.c.id == external_jobs.c.allocation_id)
            .where(allocations.c.trial_id == trial_id)
        )
        return [job_of_row(row) for row in conn.execute(query.order_by(external_jobs.c.id))]

    @reads
    def newest_of(self, conn: Connection, allocation_ids: Collection[int]) -> dict[int, ExternalJob]:
        """Return the newest job of each of these requests that has one, by the id of the request."""
        query = sa.select(external_jobs).where(external_jobs.c.allocation_id.in_(list(allocation_ids)))
        return {row.allocation_id: job_of_row(row) for row in conn.execute(query.order_by(external_jobs.c.id))}

    def take_poll(self, pool: str) -> bool:
        """Return whether the caller must poll the scheduler of a pool now. One process does at a time."""
        return self._is_due(pool) and self._take_poll(pool)

    @reads
    def _is_due(self, conn: Connection, pool: str) -> bool:
        row = conn.execute(sa.select(pools).where(pools.c.name == pool)).one_or_none()
        return row is not None and _poll_is_due(row, self.db.now())

    @writes
    def _take_poll(self, conn: Connection, pool: str) -> bool:
        row = lock_pool(conn, pool)
        now = self.db.now()
        if not _poll_is_due(row, now):
            return False
        until = now + timedelta(seconds=POLL_LEASE_S)
        conn.execute(pools.update().where(pools.c.name == pool).values(polling_until=until))
        return True

    @writes
    def polled(
        self, conn: Connection, pool: str, found: Mapping[int, JobStatus] | None, *, is_limited: bool = False
    ) -> None:
        """Store the answer of a scheduler, and let the next poll be taken.

        :param found: id of the job -> its state; None: the scheduler did not answer
        :param is_limited: it answered that it gets too many requests
        """
        row = lock_pool(conn, pool)
        now = self.db.now()
        known = {job.job_id: job for job in _jobs(conn, (found or {}).keys())}
        before = {job_id: known[job_id] for job_id in found or {}}
        after = {job_id: _observe(conn, now, before[job_id], status) for job_id, status in (found or {}).items()}
        has_moved = any(after[job_id].phase != before[job_id].phase for job_id in after)
        first_s = _first_pause_s(conn, pool)
        every_s = first_s if has_moved else min(POLL_MOST_S, max(first_s, row.poll_every_s * POLL_FACTOR))
        if is_limited:
            every_s = min(POLL_LIMITED_S, max(first_s, row.poll_every_s * POLL_LIMITED_FACTOR))
        if after != before:
            bump(conn, pool)
        end_forgotten(conn, now, pool)
        values = {"polled_at": now, "polling_until": None, "poll_every_s": every_s}
        conn.execute(pools.update().where(pools.c.name == pool).values(**values))

    # -- the grant -----------------------------------------------------------------------------
    @writes
    def grant(self, conn: Connection, attempt_id: int, watch: int, job_id: int, records: Sequence[HostRecord]) -> None:
        """Grant the slots of a running job to the request of an attempt. Repeatable.

        The nodes of the job become hosts of its pool.

        :param records: the nodes, with ``external_job_id`` and ``node``
        :raises StaleWatchError: the watch is not current
        """
        _, row = guard_gang(conn, attempt_id, watch)
        self._grant(conn, row, job_id, records)

    @writes
    def grant_gang(self, conn: Connection, allocation_id: int, job_id: int, records: Sequence[HostRecord]) -> None:
        """Grant the slots of a running job to the request for a held gang. Repeatable."""
        self._grant(conn, _locked(conn, allocation_id), job_id, records)

    def _grant(self, conn: Connection, row: AllocationRow, job_id: int, records: Sequence[HostRecord]) -> None:
        if row.state != "waiting":
            return
        now = self.db.now()
        known = set(conn.scalars(sa.select(hosts.c.name).where(hosts.c.external_job_id == job_id)))
        for record in records:
            if record.name not in known:
                insert_host(self.db, conn, record)
        states.check("allocation", "waiting", "granted")
        token = raise_token(conn, 1)
        enter_wait(conn, row, now)
        grant = {"of": row.id, "new_token": token, "waited": waited_s(row, now), "now": now}
        places = [
            {"new_allocation_id": row.id, "new_token": token, "new_host": record.name, "new_slot": slot}
            for record in records
            for slot in ([one.index for one in record.slots] or [-1])
        ]
        statements.write(conn, [(GRANT, [grant]), (PLACE, places)])
        nodes = {record.name: _node_name(conn, job_id, record.node) for record in records}
        _set(conn, job_id, hosts=nodes)

    @writes
    def note_reason(self, conn: Connection, allocation_id: int, reason: str) -> None:
        """Store why a request waits, in words. Each reason that lasts is an entry of its trial's timeline."""
        row = _locked(conn, allocation_id)
        if row.state != "waiting" or row.reason == reason:
            return
        now = self.db.now()
        since_s = row.requested_at.timestamp() if row.reason_since_s is None else row.reason_since_s
        if row.reason and now.timestamp() - since_s >= shortest_s(row.reason_entries, KEPT_FROM_S):
            enter_wait(conn, row, now)
            statements.write(conn, [(BEGIN_REASON, [{"of": row.id, "now_s": now.timestamp()}])])
        statements.update(conn, allocations, row.id, reason=reason)

    # -- the end -------------------------------------------------------------------------------
    @writes
    def ask_back(self, conn: Connection, job_id: int, reason: str) -> None:
        """Record that a scheduler wants the slots of a job back. The follower of its gang then lets the ranks stop.

        :param reason: why, in words; the first one stays
        """
        where = (external_jobs.c.id == job_id, external_jobs.c.asked_back.is_(None))
        conn.execute(external_jobs.update().where(*where).values(asked_back=reason))

    @writes
    def cancelling(self, conn: Connection, job_ids: Sequence[int]) -> None:
        """Record that jobs are cancelled now, by us and with the scheduler's command."""
        conn.execute(external_jobs.update().where(external_jobs.c.id.in_(job_ids)).values(cancelled_at=self.db.now()))

    @reads
    def surplus(self, conn: Connection) -> list[ExternalJob]:
        """Return jobs that must be cancelled now: their gang has ended, or they are in the queue for a second time."""
        now = self.db.now()
        since = now - ENDS_WITHIN
        has_left = sa.and_(allocations.c.state == "released", allocations.c.ended_at <= since)
        # A node that does not answer keeps its slots. The end of the job is the proof that nothing is left there.
        is_recent = sa.or_(attempts.c.ended_at.is_(None), attempts.c.ended_at > since)
        users = sa.select(attempts.c.id).where(attempts.c.allocation_id == allocations.c.id, is_recent)
        is_stuck = sa.and_(allocations.c.state == "expired", ~users.exists())
        is_back = sa.and_(allocations.c.state != "waiting", external_jobs.c.phase == JobPhase.WAITING)
        is_due = sa.or_(external_jobs.c.cancelled_at.is_(None), external_jobs.c.cancelled_at <= now - CANCEL_AGAIN)
        query = (
            sa.select(external_jobs)
            .join(allocations, allocations.c.id == external_jobs.c.allocation_id)
            .where(_LIVE, is_due, sa.or_(has_left, is_stuck, is_back, external_jobs.c.cancelled_at.is_not(None)))
            .order_by(external_jobs.c.id)
        )
        return [job_of_row(row) for row in conn.execute(query)]

    @reads
    def unfinished_pools(self, conn: Connection) -> list[str]:
        """Return the pools with jobs that have not ended."""
        return sorted(set(conn.scalars(sa.select(external_jobs.c.pool).where(_LIVE).distinct())))

    @writes
    def remove_hosts(self, conn: Connection) -> int:
        """Remove the hosts of ended jobs that hold no slots, and return their number."""
        held = sa.select(allocation_slots.c.id).where(
            allocation_slots.c.host == hosts.c.name, allocation_slots.c.released_at.is_(None)
        )
        over = sa.select(external_jobs.c.id).where(external_jobs.c.phase == JobPhase.ENDED)
        where = (hosts.c.external_job_id.in_(over), ~held.exists())
        return conn.execute(hosts.delete().where(*where)).rowcount

    @reads
    def excluded_nodes(self, conn: Connection, allocation_id: int) -> list[str]:
        """Return the nodes that a request must not use: those of hosts that its trial avoids."""
        query = (
            sa.select(trials.c.id, trials.c.excluded)
            .join(allocations, allocations.c.trial_id == trials.c.id)
            .where(allocations.c.id == allocation_id)
        )
        row = conn.execute(query).one_or_none()
        if row is None:
            return []
        now_s = self.db.now().timestamp()
        names = {entry["host"] for entry in row.excluded or [] if entry["until_s"] > now_s}
        return sorted(_nodes_of(conn, row.id, names) | _failed_nodes(conn, allocation_id))


def _limit_reached(conn: Connection, row: AllocationRow, most: int | None) -> str | None:
    """Return which limit a further job would exceed, in words, None without one."""
    live: sa.Select[Any] = (
        sa.select(allocations.c.slots, trials.c.search_id, trials.c.experiment_id)
        .join(external_jobs, external_jobs.c.allocation_id == allocations.c.id)
        .outerjoin(trials, trials.c.id == allocations.c.trial_id)
        .where(_LIVE)
    )
    if most is not None:
        count = len(conn.execute(live.where(external_jobs.c.pool == row.pool)).all())
        if count >= most:
            return f"pool '{row.pool}' has {count} jobs, and its --max-jobs is {most}"
    own = conn.execute(_SHARES.where(trials.c.id == row.trial_id)).one_or_none()
    if own is None:
        return None
    of_experiment = conn.execute(live.where(trials.c.experiment_id == own.experiment_id)).all()
    beside = sum(one.search_id == own.search_id for one in of_experiment) if own.search_id is not None else 0
    if own.max_concurrent_trials and beside >= own.max_concurrent_trials:
        return f"{beside} trials of its search have jobs, and max_concurrent_trials is {own.max_concurrent_trials}"
    held = sum(one.slots for one in of_experiment)
    if own.max_slots is not None and held + row.slots > own.max_slots:
        return f"jobs of its experiment have {held} slots, and its max_slots is {own.max_slots}"
    return None


_SHARES = (
    sa.select(trials.c.experiment_id, trials.c.search_id, experiments.c.max_slots, searches.c.max_concurrent_trials)
    .join(experiments, experiments.c.id == trials.c.experiment_id)
    .outerjoin(searches, searches.c.id == trials.c.search_id)
)


def _nodes_of(conn: Connection, trial_id: int, names: Iterable[str]) -> set[str]:
    """Return the nodes behind hosts of a trial's earlier jobs."""
    query = (
        sa.select(external_jobs.c.hosts)
        .join(allocations, allocations.c.id == external_jobs.c.allocation_id)
        .where(allocations.c.trial_id == trial_id)
    )
    known: dict[str, str] = {}
    for found in conn.scalars(query):
        known |= found or {}
    return {known[name] for name in names if name in known}


def _failed_nodes(conn: Connection, allocation_id: int) -> set[str]:
    """Return nodes that failed jobs of a request before its grant."""
    query = sa.select(external_jobs.c.end).where(external_jobs.c.allocation_id == allocation_id)
    ends = [end_of(found) for found in conn.scalars(query) if found is not None]
    return {node for end in ends if end is not None and end.kind == EndKind.NODE_FAILED for node in end.nodes}


def _observe(conn: Connection, now: datetime, job: ExternalJob, status: JobStatus) -> ExternalJob:
    """Store the state of a job if it has changed, and return the job with it."""
    end = status.end
    if end is not None and end.kind in (EndKind.CANCELLED, EndKind.LOST) and job.is_cancelled:
        end = replace(end, kind=EndKind.COMPLETED)
    # A user can put a job that runs back into the queue. Its gang is lost, and another start is no grant.
    has_moved = None not in (status.started_at, job.started_at) and status.started_at != job.started_at
    is_back = bool(job.hosts) and end is None and (status.phase == JobPhase.WAITING or has_moved)
    new = replace(
        job,
        number=status.number,
        phase=JobPhase.WAITING if is_back else status.phase,
        reason=status.reason,
        is_hopeless=status.is_hopeless,
        nodes=status.nodes if status.nodes and not is_back else job.nodes,
        started_at=job.started_at if is_back else status.started_at or job.started_at,
        ends_at=status.ends_at or job.ends_at,
        expected_at=_expected_at(job, status),
        end=end or job.end,
    )
    if new == job or job.is_over:
        return job
    is_over = status.phase == JobPhase.ENDED
    _set(
        conn,
        job.job_id,
        number=new.number,
        phase=new.phase,
        reason=new.reason,
        is_hopeless=new.is_hopeless,
        nodes=list(new.nodes),
        started_at=new.started_at,
        ends_at=new.ends_at,
        expected_at=new.expected_at,
        end=asdict(new.end) if new.end is not None else None,
        # No process connects to it again.
        **({"ended_at": now, "access": b""} if is_over else {}),
    )
    if new.expected_at != job.expected_at:
        _expect(conn, job.allocation_id, new.expected_at)
    return new


def _expected_at(job: ExternalJob, status: JobStatus) -> datetime | None:
    """Return the expected start of a waiting job: the known one, unless the scheduler's has moved."""
    new, old = status.expected_at, job.expected_at
    if status.phase != JobPhase.WAITING or new is None or old is None:
        return new if status.phase == JobPhase.WAITING else None
    return new if abs(new - old) >= MOVED else old


def _expect(conn: Connection, allocation_id: int, at: datetime | None) -> None:
    """Store the expected start of a request, as the queue of the store does for its own."""
    text = f"about {at.astimezone(UTC):%Y-%m-%d %H:%MZ}, as its scheduler estimates" if at is not None else ""
    where = (allocations.c.id == allocation_id, allocations.c.state == "waiting")
    conn.execute(allocations.update().where(*where).values(expected_at=at, expected=text))


def _poll_is_due(row: Any, now: datetime) -> bool:
    if row.polling_until is not None and now < row.polling_until:
        return False
    if row.polled_at is None or row.polled_at > now:
        return True
    return bool((now - row.polled_at).total_seconds() >= row.poll_every_s)


def _first_pause_s(conn: Connection, pool: str | None) -> float:
    waiting = (external_jobs.c.pool == pool, external_jobs.c.phase == JobPhase.WAITING)
    count = conn.scalar(sa.select(sa.func.count()).select_from(external_jobs).where(*waiting))
    return POLL_SINGLE_S if int(count or 0) <= 1 else POLL_FIRST_S


def _locked(conn: Connection, allocation_id: int) -> AllocationRow:
    pool = conn.scalar(sa.select(allocations.c.pool).where(allocations.c.id == allocation_id))
    if pool is None:
        raise NotFoundError(f"The store has no request {allocation_id}.")
    lock_pool(conn, pool)
    row: AllocationRow = statements.first(conn, ALLOCATION, {"gang": allocation_id})
    return row


def _subject(row: AllocationRow) -> str:
    return f"t{row.trial_id}" if row.trial_id is not None else "gang"


def _newest(conn: Connection, allocation_id: int) -> ExternalJob | None:
    query = sa.select(external_jobs).where(external_jobs.c.allocation_id == allocation_id)
    found = conn.execute(query.order_by(external_jobs.c.id.desc()).limit(1)).one_or_none()
    return None if found is None else job_of_row(found)


def _jobs(conn: Connection, job_ids: Iterable[int]) -> list[ExternalJob]:
    query = sa.select(external_jobs).where(external_jobs.c.id.in_(list(job_ids)))
    return [job_of_row(row) for row in conn.execute(query)]


def _set(conn: Connection, job_id: int, **values: Any) -> None:
    conn.execute(external_jobs.update().where(external_jobs.c.id == job_id).values(**values))


def _node_name(conn: Connection, job_id: int, number: int | None) -> str:
    nodes = conn.scalar(sa.select(external_jobs.c.nodes).where(external_jobs.c.id == job_id)) or []
    return str(nodes[number or 0])
