"""Telemetry of hosts and ranks: commits of followers, and the questions of pages and commands."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.resources.telemetry import MetricRange
from airflow_provider_dtrain.store.database.tables import attempts, stragglers, telemetry_hosts
from airflow_provider_dtrain.store.database.transactions import Database, check_watch, reads, writes
from airflow_provider_dtrain.store.records.telemetry import (
    AttemptStepTimes,
    HostTelemetry,
    Series,
    SeriesKind,
    Sparkline,
    TelemetryGap,
    TelemetryState,
    TimingBreakdown,
)
from airflow_provider_dtrain.store.telemetry import queries, rank_queries
from airflow_provider_dtrain.store.telemetry.commits import Commit, OvertakenError, RunRows, rows_of, write_all
from airflow_provider_dtrain.store.telemetry.compaction import Compaction, next_compaction, write_compaction
from airflow_provider_dtrain.store.telemetry.host_rows import TelemetryKey, state_of
from airflow_provider_dtrain.store.telemetry.retention import (
    Pruned,
    count_chunks,
    left_slices,
    old_chunks,
    remove_chunks,
    remove_hosts,
)
from airflow_provider_dtrain.store.telemetry.sparklines import find_latest, find_sparklines


class Telemetry:
    """System metrics of hosts and GPUs, and timings of ranks, as time series of attempts."""

    def __init__(self, db: Database) -> None:
        self.db = db

    # -- followers -----------------------------------------------------------------------------
    @reads
    def states(self, conn: Connection, attempt_id: int) -> dict[str, TelemetryState]:
        """Return the state of each host of the attempt's current run that has sent telemetry."""
        return {host: state_of(row) for host, row in rows_of(conn, attempt_id).hosts.items()}

    def add(self, attempt_id: int, watch: int, parts: Sequence[HostTelemetry]) -> dict[str, TelemetryState] | None:
        """Store points of hosts with the positions that they come from, all in one short transaction.

        :param parts: one per host
        :returns: the new state of each of these hosts. None when another writer has changed the state of one since the
            caller has read it: nothing is stored, and the caller reads the states again
        :raises StaleWatchError: the watch is not current
        :raises ValueError: a value is not finite
        """
        known = self._rows(attempt_id)
        commits = []
        for part in parts:
            row = known.hosts.get(part.host)
            if part.commits not in (None, row.commits if row is not None else 0):
                return None
            commits.append(Commit(TelemetryKey(attempt_id, known.token, part.host), part, row))
        try:
            self._add(attempt_id, watch, commits)
        except OvertakenError:
            return None
        return {commit.key.host: commit.state for commit in commits}

    @reads
    def _rows(self, conn: Connection, attempt_id: int) -> RunRows:
        return rows_of(conn, attempt_id)

    @writes
    def _add(self, conn: Connection, attempt_id: int, watch: int, commits: Sequence[Commit]) -> None:
        check_watch(conn, attempt_id, watch)
        write_all(conn, commits, self.db.now())

    def compact(self, attempt_id: int) -> None:
        """Merge the slices of an attempt into chunks.

        A host is compacted in small transactions. One that another process changes meanwhile is left for the next time.
        """
        for key in self._keys(attempt_id):
            self._compact(key)

    def _compact(self, key: TelemetryKey) -> None:
        while (compaction := self._next_compaction(key)) is not None and self._write_compaction(compaction):
            pass

    @reads
    def _keys(self, conn: Connection, attempt_id: int) -> list[TelemetryKey]:
        of = telemetry_hosts.c
        query = sa.select(of.attempt_id, of.token, of.host).where(of.attempt_id == attempt_id)
        return [TelemetryKey(*row) for row in conn.execute(query.order_by(of.host))]

    @reads
    def _next_compaction(self, conn: Connection, key: TelemetryKey) -> Compaction | None:
        return next_compaction(conn, key)

    @writes
    def _write_compaction(self, conn: Connection, compaction: Compaction) -> bool:
        return write_compaction(conn, compaction)

    # -- retention -----------------------------------------------------------------------------
    def prune(self, days: int) -> Iterator[Pruned]:
        """Remove points that are older than their tier keeps them, and yield the result of each small transaction.

        Slices that a follower has left are compacted first.

        :param days: age in days from which nothing is kept; 0 = no limit
        """
        for key in self._left_slices():
            self._compact(key)
        for condition in old_chunks(self.db.now(), days):
            while (pruned := self._remove(condition)).count:
                yield pruned
        self._remove_hosts(days)

    @reads
    def prunable(self, conn: Connection, days: int) -> Pruned:
        """Return the count and size of the rows that :meth:`prune` would remove at least."""
        found = [count_chunks(conn, condition) for condition in old_chunks(self.db.now(), days)]
        return Pruned(sum(one.count for one in found), sum(one.size_bytes for one in found))

    @reads
    def _left_slices(self, conn: Connection) -> list[TelemetryKey]:
        return left_slices(conn, self.db.now())

    @writes
    def _remove(self, conn: Connection, condition: sa.ColumnElement[bool]) -> Pruned:
        return remove_chunks(conn, condition)

    @writes
    def _remove_hosts(self, conn: Connection, days: int) -> None:
        remove_hosts(conn, self.db.now(), days)

    # -- pages and commands --------------------------------------------------------------------
    @reads
    def series(
        self,
        conn: Connection,
        trial_id: int,
        *,
        attempt: int | None = None,
        metrics: Collection[str] | None = None,
        kind: SeriesKind = "system",
        hosts: Collection[str] | None = None,
        ranks: Collection[int] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        max_points: int = 2000,
    ) -> list[Series]:
        """Return the series of a trial, by attempt, metric, host, device and rank.

        Many series share :data:`queries.POINTS_MOST` points, so each of them may have fewer than ``max_points``.

        :param attempt: number of one attempt; None = all
        :param metrics: names of this kind; None = all
        :param hosts: only these hosts; None = all
        :param ranks: only these ranks; None = all
        :param since: aware; None = from the first point
        :param until: aware, exclusive; None = up to the last point
        :param max_points: most points of one series, 10 to 20,000; extremes are kept
        :raises NotFoundError: there is no such trial or attempt
        :raises UserError: an unknown metric, or a number of points beyond the limits
        """
        chosen = queries.check_metrics(kind, metrics)
        queries.check_points(max_points)
        of = queries.attempts_of(conn, trial_id, attempt)
        span = queries.span_of(conn, of, self.db.now(), since, until)
        if span is None:
            return []
        return queries.find_series(conn, queries.SeriesQuery(of, chosen, hosts, ranks, span, max_points))

    @reads
    def step_times(
        self,
        conn: Connection,
        trial_id: int,
        attempt: int | None = None,
        buckets: int = 200,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AttemptStepTimes:
        """Return the step times of each rank by time bucket, and the ranks that are slow.

        A rank is slow by the rule of the trial's configuration, see :func:`step_times.compare`.

        :param attempt: its number; None = the latest
        :param buckets: most time buckets, 10 to 20,000
        :raises NotFoundError: there is no such trial or attempt
        """
        queries.check_points(buckets)
        of = queries.latest_of(conn, trial_id, attempt)
        span = queries.span_of(conn, [of], self.db.now(), since, until)
        return rank_queries.find_step_times(conn, of, span, buckets)

    @reads
    def timings(
        self,
        conn: Connection,
        trial_id: int,
        attempt: int | None = None,
        buckets: int = 200,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> TimingBreakdown:
        """Return the parts of the steps of an attempt by time bucket, and the total of each timing.

        :param attempt: its number; None = the latest
        :param buckets: most time buckets, 10 to 20,000
        :raises NotFoundError: there is no such trial or attempt
        """
        queries.check_points(buckets)
        of = queries.latest_of(conn, trial_id, attempt)
        span = queries.span_of(conn, [of], self.db.now(), since, until)
        return rank_queries.find_breakdown(conn, of, span, buckets)

    @reads
    def ranges(self, conn: Connection, trial_id: int, attempt: int | None = None) -> list[MetricRange]:
        """Return minimum, mean and maximum of each system metric over an attempt, by host, device and metric.

        :param attempt: its number; None = the latest
        :raises NotFoundError: there is no such trial or attempt
        """
        of = queries.latest_of(conn, trial_id, attempt)
        span = queries.span_of(conn, [of], self.db.now())
        return queries.find_ranges(conn, of, span) if span is not None else []

    @reads
    def gaps(self, conn: Connection, trial_id: int, attempt: int | None = None) -> dict[str, list[TelemetryGap]]:
        """Return what is missing in the telemetry of an attempt: host -> gaps, counted per stream and reason.

        :param attempt: its number; None = the latest
        :raises NotFoundError: there is no such trial or attempt
        """
        one = queries.latest_of(conn, trial_id, attempt)
        rows = conn.execute(sa.select(telemetry_hosts).where(telemetry_hosts.c.attempt_id == one.attempt_id))
        return {row.host: list(state_of(row).gaps) for row in rows if row.gaps}

    @reads
    def version(self, conn: Connection, trial_id: int) -> tuple[object, ...]:
        """Return a value that changes whenever the telemetry of a trial may have changed. Reads no chunks."""
        of = telemetry_hosts.c
        sums = (sa.func.count(), sa.func.sum(of.commits), sa.func.max(of.updated_at))
        own = sa.select(attempts.c.id).where(attempts.c.trial_id == trial_id)
        newest = conn.scalar(sa.select(sa.func.max(attempts.c.id)).where(attempts.c.trial_id == trial_id))
        slow = (sa.func.count(stragglers.c.id), sa.func.count(stragglers.c.until))
        named = conn.execute(sa.select(*slow).where(stragglers.c.attempt_id.in_(own))).one()
        return newest, *named, *conn.execute(sa.select(*sums).where(of.attempt_id.in_(own))).one()

    @reads
    def sparklines(
        self, conn: Connection, hosts: Collection[str], since: datetime, points: int = 60
    ) -> list[Sparkline]:
        """Return the mean utilization of hosts and GPUs, by host and device: ``cpu_util`` and ``gpu_util``.

        The store keeps it for two hours. An earlier ``since`` means two hours ago. The last interval ends with the
        current minute, which is left out while an earlier one is known: it would be the mean of some seconds.

        :param hosts: names; unknown ones and hosts without telemetry have no sparkline
        :param since: aware
        :param points: most intervals, 1 to 120
        """
        return find_sparklines(conn, hosts, since, self.db.now(), points)

    @reads
    def latest(self, conn: Connection, hosts: Collection[str]) -> dict[tuple[str, str, str], float]:
        """Return (host, device, metric) -> mean of the latest minute of load, memory, temperature and power.

        The device is the UUID of a GPU, empty for a host. Series without a measurement in the last minutes are absent.
        """
        return find_latest(conn, hosts, self.db.now())
