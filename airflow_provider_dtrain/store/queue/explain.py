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
from airflow_provider_dtrain.store.database.tables import allocations, experiments, hosts, pools, trials
from airflow_provider_dtrain.store.database.transactions import Base, reads
from airflow_provider_dtrain.store.pools import options_of
from airflow_provider_dtrain.store.queue.accounting import held_s, waited_s
from airflow_provider_dtrain.store.queue.pass_snapshot import SITUATION, decide, situation

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


class Explaining(Base):
    """Read-only queries that explain the queue. Their results may be one pass old."""

    def silent_since(self, heard_at: datetime | None) -> datetime | None:
        """Return the last sign of life of a follower that is gone, None while it is alive.

        :param heard_at: of an attempt or a task
        """
        return heard_at if heard_at is not None and heard_at <= self._now() - SILENT_AFTER else None

    @reads
    def queue_facts(self, conn: Connection, allocation_id: int) -> QueueFacts:
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
        until = row.ended_at or self._now()
        return QueueFacts(
            queue_class=CLASS_WORDS[self._level(conn, row)],
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
        return decide(situation(rows, options_of(row), self._now()), more=[request])

    def _level(self, conn: Connection, row: Row[Any]) -> int:
        now = self._now()
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
