"""Queue facts about one gang, for display, and the outlook of a hypothetical request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.lifecycle.follower_text import Silence, silence
from airflow_provider_dtrain.core.scheduling.decision import PassDecision
from airflow_provider_dtrain.core.scheduling.model import GangRequest
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.gangs import QueueClass
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.filters import contains
from airflow_provider_dtrain.store.database.rows import record_of
from airflow_provider_dtrain.store.database.tables import allocations, experiments, gangs, pools, trials
from airflow_provider_dtrain.store.database.transactions import Database, reads
from airflow_provider_dtrain.store.pools import options_of
from airflow_provider_dtrain.store.queue.accounting import held_s, waited_s
from airflow_provider_dtrain.store.queue.pass_snapshot import SITUATION, decide, situation
from airflow_provider_dtrain.store.queue.queue_rows import (
    FROM_GANGS,
    FROM_QUEUE,
    QUEUE,
    QUEUE_COUNT,
    QUEUE_IDS,
    TASK,
    levels,
    task_views,
)
from airflow_provider_dtrain.store.queue.queue_version import queue_version
from airflow_provider_dtrain.store.records.pages import PageVersion, QueueEntry, QueueOrder, QueueQuery
from airflow_provider_dtrain.store.records.trials import AttemptView, TaskView


@dataclass(frozen=True, kw_only=True)
class QueueFacts:
    """Facts that decide the place of a gang in the queue."""

    #: ``protected``, ``fresh``, ``young``, ``overdue`` or ``old``; best class first.
    queue_class: QueueClass
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

    def silence(self, gang: TaskView | AttemptView) -> Silence:
        """Return how long the follower of a gang has been silent."""
        return silence(gang.seen_at, self.db.now(), is_handed_over=gang.is_handed_over)

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
            queue_class=levels(conn, self.db.now(), [row])[row.id],
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
        rows = conn.execute(QUEUE.where(sa.true() if pool is None else allocations.c.pool == pool)).all()
        return task_views(conn, sorted(rows, key=_in_queue_order))

    @reads
    def version(self, conn: Connection) -> PageVersion:
        """Return a value that changes whenever a fact of the queue page changes, queue classes excepted.

        A queue class changes with time alone.
        """
        return queue_version(conn, self.db.now())

    @reads
    def page(self, conn: Connection, query: QueueQuery) -> tuple[list[QueueEntry], int]:
        """Return one page of the gangs that wait or hold slots, and the number of all that match."""
        where, tables = _matching(query), _tables(query)
        # Only the ids of all gangs are put in order, because their rows are wide.
        ordered = QUEUE_IDS.select_from(tables).where(*where).order_by(*_order(query))
        found = conn.execute(ordered.limit(query.limit).offset(query.offset)).all()
        total = found[0].total if found else int(conn.scalar(QUEUE_COUNT.select_from(tables).where(*where)) or 0)
        by_id = {row.id: row for row in conn.execute(QUEUE.where(allocations.c.id.in_([one.id for one in found])))}
        rows = [by_id[one.id] for one in found if one.id in by_id]
        classes = levels(conn, self.db.now(), rows)
        views = task_views(conn, rows)
        return [_entry(row, view, classes[row.id]) for row, view in zip(rows, views, strict=True)], total

    @reads
    def dags(self, conn: Connection) -> frozenset[str]:
        """Return the DAGs whose tasks have experiments or held gangs in the store."""
        known = sa.union(sa.select(experiments.c.dag_id), sa.select(gangs.c.dag_id))
        return frozenset(conn.scalars(known))


def _in_queue_order(row: Row[Any]) -> tuple[Any, ...]:
    place = row.position if row.state == "waiting" and row.position is not None else 0
    return row.pool, row.priority, place, row.sequence


_WAITS = allocations.c.state == "waiting"
_SINCE = sa.case((_WAITS, allocations.c.submitted_at), else_=allocations.c.granted_at)
#: Name of an order -> its columns. The default shows running gangs before waiting ones.
_ORDERS: Mapping[QueueOrder, tuple[sa.ColumnElement[Any], ...]] = {
    "position": (allocations.c.pool, _WAITS, sa.func.coalesce(allocations.c.position, 2**31), allocations.c.priority),
    "priority": (allocations.c.priority,),
    "slots": (allocations.c.slots,),
    "since": (_SINCE,),
    "state": (allocations.c.state,),
    "pool": (allocations.c.pool,),
    "experiment": (experiments.c.name,),
}


def _order(query: QueueQuery) -> list[sa.ColumnElement[Any]]:
    columns = [*_ORDERS[query.sort], allocations.c.sequence, allocations.c.id]
    return [column.desc() for column in columns] if query.descending else columns


def _tables(query: QueueQuery) -> sa.FromClause:
    names_tasks = query.sort == "experiment" or query.dags is not None or query.text
    return FROM_QUEUE if names_tasks else FROM_GANGS


def _matching(query: QueueQuery) -> list[sa.ColumnElement[bool]]:
    where: list[sa.ColumnElement[bool]] = []
    if query.pool is not None:
        where.append(allocations.c.pool == query.pool)
    if query.state is not None:
        where.append(allocations.c.state == query.state)
    if query.dags is not None:
        where.append(TASK["dag_id"].in_(sorted(query.dags)))
    if query.text:
        texts = (experiments.c.name, TASK["dag_id"], TASK["task_id"], TASK["run_id"])
        where.append(contains(query.text, *texts, number=trials.c.id))
    return where


def _entry(row: Row[Any], view: TaskView, queue_class: QueueClass) -> QueueEntry:
    return record_of(
        QueueEntry,
        row,
        task=view,
        queue_class=queue_class,
        expected_at=row.expected_at if view.position is not None else None,
        is_held_gang=bool(row.is_gang),
        trial_task=(row.trial_task or "", -1 if row.trial_map_index is None else row.trial_map_index),
        is_drawn=bool(row.is_drawn),
    )
