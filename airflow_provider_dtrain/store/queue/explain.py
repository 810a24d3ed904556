"""Queue facts about one gang, for display, and the outlook of a hypothetical request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.lifecycle.states import ALLOCATION_LIVE
from airflow_provider_dtrain.core.lifecycle.timing import SILENT_AFTER
from airflow_provider_dtrain.core.scheduling.aging import Overdue, protected
from airflow_provider_dtrain.core.scheduling.decision import PassDecision
from airflow_provider_dtrain.core.scheduling.model import GangRequest, PoolOptions
from airflow_provider_dtrain.core.scheduling.priority_tiers import (
    FRESH,
    OVERDUE,
    PROTECTED,
    REST,
    YOUNG,
    is_overdue,
    level_of,
)
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.rows import AllocationRow
from airflow_provider_dtrain.store.database.tables import allocations, attempts, experiments, hosts, pools, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.pools import options_of
from airflow_provider_dtrain.store.queue.accounting import held_s, waited_s
from airflow_provider_dtrain.store.queue.held_gangs import gang_rows, gang_words
from airflow_provider_dtrain.store.queue.pass_snapshot import SITUATION, decide, situation
from airflow_provider_dtrain.store.records.trials import TaskView
from airflow_provider_dtrain.store.views import JOINED, TRIAL_KEY, heard_at, key_of, placements, waits_because

#: Classes of the queue, best first.
CLASS_WORDS: Mapping[int, str] = {
    PROTECTED: "protected", FRESH: "fresh", OVERDUE: "overdue", YOUNG: "young", REST: "old",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class QueueFacts:
    """Facts that decide the place of a gang in the queue."""

    #: ``protected``, ``fresh``, ``overdue``, ``young`` or ``old``; best class first.
    queue_class: str
    #: Counters up to now.
    waited_s: float
    held_s: float
    #: Slots that become free for it, and hosts that are reserved for it.
    claim: Mapping[str, Sequence[int]]
    reserved_hosts: Sequence[str]
    #: Of its experiment; ``max_slots`` None: no cap.
    weight: float | None
    max_slots: int | None


class QueueView:
    """Read-only queries that explain the queue. Their results may be one pass old."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def silent_since(self, heard_at: datetime | None) -> datetime | None:
        """Return the last sign of life of a follower that is gone, None while it is alive.

        :param heard_at: of an attempt or a task
        """
        return heard_at if heard_at is not None and heard_at <= self.db.now() - SILENT_AFTER else None

    @reads
    def facts(self, conn: Connection, allocation_id: int) -> QueueFacts:
        """Return the facts that decide the place of a gang that waits or runs.

        :raises NotFoundError: there is no such allocation
        """
        query = (
            sa.select(allocations, experiments.c.weight, experiments.c.max_slots)
            .outerjoin(trials, trials.c.id == allocations.c.trial_id)
            .outerjoin(experiments, experiments.c.id == trials.c.experiment_id)
        )
        row = conn.execute(query.where(allocations.c.id == allocation_id)).one_or_none()
        if row is None:
            raise NotFoundError(f"There is no allocation {allocation_id}.")
        until = row.ended_at or self.db.now()
        return QueueFacts(
            queue_class=CLASS_WORDS[_level(conn, self.db.now(), row)],
            waited_s=waited_s(row, row.granted_at or until),
            held_s=held_s(row, until),
            claim=row.claim or {},
            reserved_hosts=row.reserved_hosts or (),
            weight=row.weight,
            max_slots=row.max_slots,
        )

    @reads
    def outlook(self, conn: Connection, pool: str, request: GangRequest) -> PassDecision:
        """Return the decision of a scheduling pass with one more request, without a change to the store.

        :raises NotFoundError: no such pool
        """
        row = conn.execute(sa.select(pools).where(pools.c.name == pool)).one_or_none()
        if row is None:
            raise NotFoundError(f"There is no pool '{pool}'. See: airflow dtrain pools list")
        rows = statements.read(conn, SITUATION, {"pool_name": pool})
        return decide(situation(rows, options_of(row), self.db.now()), more=[request])

    @reads
    def tasks(self, conn: Connection, pool: str | None = None) -> list[TaskView]:
        """Return every gang that waits or holds slots, in the order of the queue."""
        newest = sa.select(sa.func.max(attempts.c.id)).group_by(attempts.c.allocation_id)
        rows = conn.execute(
            sa.select(
                allocations,
                attempts.c.id.label("attempt_id"),
                attempts.c.number.label("attempt_number"),
                attempts.c.reason.label("attempt_reason"),
                attempts.c.state.label("attempt_state"),
                attempts.c.renewed_at.label("followed_at"),
                trials.c.number.label("trial_number"),
                trials.c.experiment_id,
                experiments.c.name.label("experiment"),
                *TRIAL_KEY,
            )
            .select_from(JOINED)
            .where(allocations.c.state != "released", attempts.c.id.in_(newest), allocations.c.trial_id.is_not(None))
            .where(sa.true() if pool is None else allocations.c.pool == pool)
        ).all()
        rows = sorted([*rows, *gang_rows(conn, pool)], key=_in_queue_order)
        placed = placements(conn, {row.id: row.token for row in rows if row.token is not None})
        waiting: dict[str, int] = {}
        views = []
        for row in rows:
            place_of = None
            reason = row.attempt_reason
            if row.state == "waiting":
                waiting[row.pool] = waiting.get(row.pool, 0) + 1
                place_of = row.position or waiting[row.pool]
                reason = waits_because(conn, row.id, row.reason, row.renewed_at, row)
            hosts_of = {host: found[0] for host, found in placed.get(row.id, {}).items()}
            views.append(_task_view(row, hosts_of, place_of, reason))
        return views


def _level(conn: Connection, now: datetime, row: AllocationRow) -> int:
    pool = conn.execute(sa.select(pools).where(pools.c.name == row.pool)).one_or_none()
    options = PoolOptions() if pool is None else options_of(pool)
    if is_overdue(waited_s(row, row.granted_at or now), options):
        of = (allocations.c.pool == row.pool, allocations.c.priority == row.priority)
        live = allocations.c.state.in_(ALLOCATION_LIVE)
        same = conn.execute(sa.select(allocations).where(*of, live).order_by(allocations.c.sequence)).all()
        overdue = [
            Overdue(one.sequence, str(one.id), one.slots)
            for one in same
            if (one.state != "waiting" or one.eligible_since is not None)
            and is_overdue(waited_s(one, one.granted_at or now), options)
        ]
        usable = sa.select(sa.func.coalesce(sa.func.sum(hosts.c.slot_count), 0))
        slots = conn.scalar(usable.where(hosts.c.pool == row.pool, hosts.c.state != "disabled"))
        if str(row.id) in protected(overdue, int(slots or 0), options):
            return PROTECTED
    return level_of(held_s(row, now), waited_s(row, row.granted_at or now), options)


def _in_queue_order(row: Row[Any]) -> tuple[Any, ...]:
    place = row.position if row.state == "waiting" and row.position is not None else 0
    return row.pool, row.priority, place, row.sequence


def _task_view(row: Row[Any], placement: dict[str, tuple[int, ...]], place_of: int | None, reason: str) -> TaskView:
    waits = place_of is not None
    gang = gang_words(row.dag_id, row.task_id) if row.experiment is None else None
    return TaskView(
        allocation_id=row.id,
        attempt_id=row.attempt_id,
        attempt_number=row.attempt_number,
        trial_id=row.trial_id,
        trial_number=row.trial_number,
        experiment_id=row.experiment_id,
        experiment=gang or row.experiment,
        key=key_of(row),
        pool=row.pool,
        priority=row.priority,
        slots=row.slots,
        placement=placement,
        state=row.state,
        reason=reason,
        position=place_of,
        since=row.submitted_at if waits else row.granted_at,
        expected=row.expected if waits else "",
        paused=row.paused,
        heard_at=heard_at("waiting" if waits else row.attempt_state, row.followed_at, row.renewed_at),
    )
