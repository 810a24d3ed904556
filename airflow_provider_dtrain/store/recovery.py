"""Background recovery: attempts without a follower, hosts that do not answer, and claims of recoverers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.states import ACTIVE, STARTED
from airflow_provider_dtrain.core.lifecycle.timing import LEASE_TTL, PROBED_AFTER
from airflow_provider_dtrain.store.database.tables import allocations, attempts, hosts, pools, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes
from airflow_provider_dtrain.store.queue.held_gangs import last_users
from airflow_provider_dtrain.store.records.trials import AttemptView
from airflow_provider_dtrain.store.views import attempt_views

#: A claim or renewal further in the future dates from before the clock was set back, and is ignored.
AHEAD_MOST = timedelta(minutes=5)
_SILENT_HOSTS = ("unreachable", "lost")
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
#: A statement of its own, because with an OR the database reads all attempts. The pools make the index usable.
_UNRELEASED = (
    sa.select(attempts.c.id)
    .join(allocations, allocations.c.id == attempts.c.allocation_id)
    .where(allocations.c.state == "expired", allocations.c.pool.in_(sa.select(pools.c.name)), last_users())
)


class Recovery:
    """Recovery of attempts and hosts. A recoverer claims one allocation at a time, for a bounded time."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def recoverable(self, conn: Connection, limit: int = 20) -> list[AttemptView]:
        """Return attempts to recover: ended ones with unconfirmed hosts, and live ones with an expired lease.

        The attempts whose last recovery is oldest come first. Attempts that a recoverer has claimed are left out.
        This changes nothing in the store.

        :param limit: most attempts to return
        """
        now = self.db.now()
        is_silent = sa.or_(attempts.c.renewed_at < now - LEASE_TTL, attempts.c.renewed_at > now + AHEAD_MOST)
        silent = sa.select(attempts.c.id).where(attempts.c.ended_at.is_(None), attempts.c.state.in_(ACTIVE), is_silent)
        query = (
            sa.select(attempts.c.id)
            .join(allocations, allocations.c.id == attempts.c.allocation_id)
            .where(attempts.c.id.in_(silent.union(_UNRELEASED)), _is_free(now))
            .order_by(sa.func.coalesce(allocations.c.recovering_until, _NEVER), attempts.c.id)
            .limit(limit)
        )
        wanted = list(conn.scalars(query))
        found = {view.attempt_id: view for view in attempt_views(conn, attempts.c.id.in_(wanted))} if wanted else {}
        return [found[attempt_id] for attempt_id in wanted]

    @reads
    def unfollowed(
        self,
        conn: Connection,
        *,
        trial_id: int | None = None,
        experiment_id: int | None = None,
        has_ranks: bool = False,
    ) -> list[int]:
        """Return trials whose attempt has not ended, but whose follower or waiter is gone, in the order of their ids.

        :param has_ranks: only those whose ranks were started
        """
        expired_at = self.db.now() - LEASE_TTL
        asks = sa.and_(attempts.c.state == "waiting", sa.func.coalesce(allocations.c.renewed_at, _NEVER) > expired_at)
        where = [
            attempts.c.ended_at.is_(None),
            sa.func.coalesce(attempts.c.renewed_at, _NEVER) <= expired_at,
            sa.not_(asks),
        ]
        if trial_id is not None:
            where.append(attempts.c.trial_id == trial_id)
        if experiment_id is not None:
            where.append(trials.c.experiment_id == experiment_id)
        if has_ranks:
            where.append(attempts.c.state.in_(STARTED))
        query = (
            sa.select(attempts.c.trial_id)
            .join(trials, trials.c.id == attempts.c.trial_id)
            .join(allocations, allocations.c.id == attempts.c.allocation_id)
            .where(*where)
            .order_by(attempts.c.trial_id)
        )
        return [int(one) for one in conn.scalars(query)]

    @writes
    def claim(self, conn: Connection, allocation_id: int, by: str, for_s: float) -> bool:
        """Claim the recovery of an allocation, and return False when another recoverer holds the claim.

        :param by: name of the recoverer, unique per process
        :param for_s: seconds until the claim expires
        """
        now = self.db.now()
        where = (allocations.c.id == allocation_id, sa.or_(_is_free(now), allocations.c.recoverer == by))
        values = {"recoverer": by, "recovering_until": now + timedelta(seconds=for_s)}
        return conn.execute(allocations.update().where(*where).values(**values)).rowcount == 1

    @writes
    def end(self, conn: Connection, allocation_id: int, by: str) -> None:
        """Release the claim on an allocation, unless another recoverer holds it."""
        where = (allocations.c.id == allocation_id, allocations.c.recoverer == by)
        conn.execute(allocations.update().where(*where).values(recoverer=None, recovering_until=self.db.now()))

    def hosts_to_probe(self) -> list[str]:
        """Return hosts that did not answer and that the caller must probe now.

        Each host is returned to one caller per 30 s, over all processes.
        """
        return self._take_probes() if self._has_silent_hosts() else []

    @reads
    def _has_silent_hosts(self, conn: Connection) -> bool:
        query = sa.select(hosts.c.name).where(*_probe_is_due(self.db.now())).limit(1)
        return conn.scalar(query) is not None

    @writes
    def _take_probes(self, conn: Connection) -> list[str]:
        now = self.db.now()
        query = hosts.update().where(*_probe_is_due(now)).values(probed_at=now)
        return sorted(conn.scalars(query.returning(hosts.c.name)))


def _is_free(now: datetime) -> sa.ColumnElement[bool]:
    until = allocations.c.recovering_until
    return sa.or_(until.is_(None), until <= now, until > now + AHEAD_MOST)


def _probe_is_due(now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    at = hosts.c.probed_at
    late = sa.or_(at.is_(None), at <= now - PROBED_AFTER, at > now + PROBED_AFTER)
    # Nodes of an external job are gone with it.
    return hosts.c.state.in_(_SILENT_HOSTS), late, hosts.c.external_job_id.is_(None)
