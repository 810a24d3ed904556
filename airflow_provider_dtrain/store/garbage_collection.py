"""Garbage collection of data from trials that ended long ago, and of old audit rows.

Events, offsets, log tails, copies of logs, launch plans, payloads, rung entries, slow ranks and details of timelines
are removed.
Trials, searches, results, metrics, the rows of checkpoints and digests of weights stay. Each removal is a small
transaction of its own, so that it does not block passes and event commits.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.event_log import WEIGHTS
from airflow_provider_dtrain.store.database.log_tables import log_chunks, log_copies
from airflow_provider_dtrain.store.database.statements import Values
from airflow_provider_dtrain.store.database.tables import (
    allocation_slots,
    allocations,
    attempts,
    audit,
    checkpoints,
    events,
    experiments,
    host_rates,
    host_states,
    payloads,
    ranks,
    rung_entries,
    stragglers,
    streams,
    timeline,
    trials,
)
from airflow_provider_dtrain.store.database.transactions import Database, reads, writes
from airflow_provider_dtrain.store.views import store_mark

#: Rows per transaction, which takes some milliseconds.
BATCH = 500
#: Old trials whose rows are looked up by one transaction: the next transaction does not look at them again.
TRIALS_AT_ONCE = 1000
IDS_PER_STATEMENT = 500
_RUN = re.compile(r"(?P<store>[0-9a-f]{8})-t(?P<trial>\d+)\.\d+\.\d+")


@dataclass(frozen=True, kw_only=True)
class Removed:
    """Rows of one kind that were, or would be, removed."""

    kind: str
    count: int
    size_bytes: int


@dataclass(frozen=True)
class _Kind:
    name: str
    table: sa.Table
    size: Callable[[], sa.ColumnElement[Any]]
    #: Of the time from which nothing is old, and a condition on trials.
    old: Callable[[datetime, sa.ColumnElement[bool]], sa.ColumnElement[bool]]
    #: Columns that are emptied; None: the row is deleted.
    emptied: Values | None = None
    is_of_trials: bool = True


def _over(cutoff: datetime, among: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the ids of attempts whose trial has ended before the cutoff, with every slot released."""
    held = sa.select(allocation_slots.c.id).where(
        allocation_slots.c.allocation_id == attempts.c.allocation_id, allocation_slots.c.released_at.is_(None)
    )
    return (
        sa.select(attempts.c.id)
        .join(trials, trials.c.id == attempts.c.trial_id)
        .where(among, trials.c.ended_at < cutoff, attempts.c.ended_at < cutoff, sa.not_(held.exists()))
    )


def _ended(cutoff: datetime, among: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(trials.c.id).where(among, trials.c.ended_at < cutoff)


def _decided(cutoff: datetime, among: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the ids of trials whose whole experiment has ended, so that no trial is compared with them."""
    own = (
        experiments.c.id == trials.c.experiment_id,
        experiments.c.ended_at < cutoff,
        experiments.c.state != "running",
    )
    return _ended(cutoff, among).where(sa.exists().where(*own))


def _text_bytes(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.func.length(sa.cast(column, sa.Text))


def _is_needed(cutoff: datetime) -> sa.ColumnElement[bool]:
    """Return the condition for payloads that a live or recent trial uses. An index has each of both cases."""
    used = sa.select(trials.c.id).where(trials.c.payload == payloads.c.digest)
    present = (trials.c.ended_at.is_(None), trials.c.ended_at >= cutoff)
    return sa.or_(*(used.where(condition).exists() for condition in present))


KINDS: tuple[_Kind, ...] = (
    _Kind(
        "events", events, lambda: _text_bytes(events.c.body),
        lambda *old: sa.and_(events.c.attempt_id.in_(_over(*old)), events.c.kind.not_in(WEIGHTS)),
    ),
    _Kind("offsets", streams, lambda: sa.literal(0), lambda *old: streams.c.attempt_id.in_(_over(*old))),
    _Kind(
        "log tails", ranks, lambda: sa.func.length(ranks.c.log_tail),
        lambda *old: sa.and_(ranks.c.log_tail.is_not(None), ranks.c.attempt_id.in_(_over(*old))), {"log_tail": None},
    ),
    _Kind(
        "copies of logs", log_chunks, lambda: sa.func.length(log_chunks.c.content),
        lambda *old: log_chunks.c.attempt_id.in_(_over(*old)),
    ),
    _Kind(
        "extents of copies of logs", log_copies, lambda: sa.literal(0),
        lambda *old: log_copies.c.attempt_id.in_(_over(*old)),
    ),
    _Kind(
        "launch plans", attempts, lambda: _text_bytes(attempts.c.plan),
        lambda *old: sa.and_(attempts.c.plan.is_not(None), attempts.c.id.in_(_over(*old))),
        {"plan": None, "master": None},
    ),
    _Kind(
        "timelines", timeline, lambda: sa.func.length(timeline.c.words),
        lambda *old: timeline.c.trial_id.in_(_ended(*old)),
    ),
    _Kind(
        "slow ranks", stragglers, lambda: sa.func.length(stragglers.c.text),
        lambda *old: stragglers.c.attempt_id.in_(_over(*old)),
    ),
    _Kind(
        "rung entries", rung_entries, lambda: sa.literal(0), lambda *old: rung_entries.c.trial_id.in_(_decided(*old)),
    ),
    _Kind(
        "payloads", payloads, lambda: sa.func.length(payloads.c.content),
        lambda cutoff, _: sa.and_(payloads.c.created_at < cutoff, sa.not_(_is_needed(cutoff))),
        is_of_trials=False,
    ),
    _Kind(
        "audit", audit, lambda: _text_bytes(audit.c.details), lambda cutoff, _: audit.c.at < cutoff,
        is_of_trials=False,
    ),
    _Kind(
        "host checks", host_rates, lambda: sa.literal(0), lambda cutoff, _: host_rates.c.at < cutoff,
        is_of_trials=False,
    ),
    _Kind(
        "states of hosts", host_states, lambda: sa.literal(0), lambda cutoff, _: host_states.c.until < cutoff,
        is_of_trials=False,
    ),
)  # fmt: skip


class Retention:
    """Removal of old data. It never touches a trial that has not ended or that still holds slots."""

    def __init__(self, db: Database) -> None:
        self.db = db
        #: Names of what is removed.
        self.kinds = tuple(kind.name for kind in KINDS)

    def count(self, cutoff: datetime) -> list[Removed]:
        """Return the counts and sizes that :meth:`remove` would remove.

        :param cutoff: trials that ended before it are old
        """
        return [self._count(kind, cutoff) for kind in KINDS]

    def remove(self, cutoff: datetime) -> Iterator[Removed]:
        """Remove old data, and yield the result of each small transaction."""
        steps = ((among, kind) for among in self._old_trials(cutoff) for kind in KINDS if kind.is_of_trials)
        others = ((sa.true(), kind) for kind in KINDS if not kind.is_of_trials)
        for among, kind in itertools.chain(steps, others):
            while (removed := self._remove(kind, cutoff, among)).count:
                yield removed

    def _old_trials(self, cutoff: datetime) -> Iterator[sa.ColumnElement[bool]]:
        """Yield conditions on trials that together match all old ones."""
        after = 0
        while ids := self._next_old(cutoff, after):
            after = ids[-1]
            yield trials.c.id.between(ids[0], after)

    @reads
    def _next_old(self, conn: Connection, cutoff: datetime, after: int) -> Sequence[int]:
        query = _ended(cutoff, trials.c.id > after).order_by(trials.c.id).limit(TRIALS_AT_ONCE)
        return conn.scalars(query).all()

    @reads
    def _count(self, conn: Connection, kind: _Kind, cutoff: datetime) -> Removed:
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(kind.size()), 0)).select_from(kind.table)
        count, size = conn.execute(query.where(kind.old(cutoff, sa.true()))).one()
        return Removed(kind=kind.name, count=int(count), size_bytes=int(size))

    @writes
    def _remove(self, conn: Connection, kind: _Kind, cutoff: datetime, among: sa.ColumnElement[bool]) -> Removed:
        key = list(kind.table.primary_key.columns)
        # Locked where the database locks rows, so that a row that is needed again meanwhile stays.
        query = sa.select(*key, kind.size().label("size")).where(kind.old(cutoff, among)).limit(BATCH)
        rows = conn.execute(query.with_for_update(skip_locked=True, of=kind.table)).all()
        if not rows:
            return Removed(kind=kind.name, count=0, size_bytes=0)
        chosen = sa.tuple_(*key).in_([tuple(row[: len(key)]) for row in rows])
        if kind.table is payloads:
            of_these = trials.c.payload.in_([row[0] for row in rows])
            conn.execute(trials.update().where(of_these, trials.c.ended_at < cutoff).values(payload=None))
        change = kind.table.delete() if kind.emptied is None else kind.table.update().values(**kind.emptied)
        conn.execute(change.where(chosen))
        return Removed(kind=kind.name, count=len(rows), size_bytes=sum(int(row.size or 0) for row in rows))

    @reads
    def ended(self, conn: Connection, trial_ids: Iterable[int], cutoff: datetime) -> set[int]:
        """Return those of the trials that ended before the cutoff."""
        found: set[int] = set()
        for some in _pieces(sorted(set(trial_ids))):
            found |= set(conn.scalars(_ended(cutoff, trials.c.id.in_(some))))
        return found

    @reads
    def collectable(
        self, conn: Connection, runs: Iterable[str], cutoff: datetime, *, with_checkpoints: bool = False
    ) -> tuple[list[str], list[str]]:
        """Return the runs whose folders can be removed, and the runs that stay because of checkpoints.

        Neither list has runs of another store, of trials that have not ended, or of trials with unconfirmed hosts.
        A run that this store does not know, for instance after a restore, can be removed.

        :param runs: names that a host reported
        :param with_checkpoints: True: remove also runs whose folder holds a checkpoint without a copy
        """
        mark = store_mark(conn)
        own = {run: int(found["trial"]) for run in runs if (found := _RUN.fullmatch(run)) and found["store"] == mark}
        present = _present(conn, sorted(set(own.values())), cutoff)
        free = [run for run in sorted(own) if own[run] not in present]
        kept = set() if with_checkpoints else _with_only_copies(conn, free)
        return [run for run in free if run not in kept], sorted(kept)

    @reads
    def only_copies(self, conn: Connection, runs: Iterable[str]) -> set[str]:
        """Return those of the runs whose folder holds a checkpoint without a copy."""
        return _with_only_copies(conn, sorted(set(runs)))

    @writes
    def runs_collected(self, conn: Connection, host: str, runs: Sequence[str]) -> None:
        """Record that the folders of runs on a host were removed, with the checkpoints in them."""
        of = checkpoints.c
        for some in _pieces(runs):
            where = (of.host == host, of.run.in_(some), of.removed_at.is_(None), sa.not_(of.path.like("/%")))
            unreachable = checkpoints.update().where(*where, sa.not_(of.path.like("%://%")))
            conn.execute(unreachable.values(removed_at=self.db.now()))

    @reads
    def needed_archives(self, conn: Connection, cutoff: datetime) -> set[str]:
        """Return the digests of user code and libraries that a live or recent trial uses."""
        found = set(conn.scalars(sa.select(payloads.c.digest).where(_is_needed(cutoff))))
        live = sa.select(attempts.c.plan).where(attempts.c.plan.is_not(None), attempts.c.ended_at.is_(None))
        for plan in conn.scalars(live):
            parts = (plan.get("plans") or plan).values() if isinstance(plan, dict) else ()
            found |= {str(part.get("library")) for part in parts if isinstance(part, dict)}
        return {str(digest) for digest in found} - {"None"}


def _pieces(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), IDS_PER_STATEMENT):
        yield values[start : start + IDS_PER_STATEMENT]


def _present(conn: Connection, trial_ids: Sequence[int], cutoff: datetime) -> set[int]:
    found: set[int] = set()
    held = (
        sa.select(allocation_slots.c.id)
        .join(allocations, allocations.c.id == allocation_slots.c.allocation_id)
        .join(attempts, attempts.c.allocation_id == allocations.c.id)
        .where(attempts.c.trial_id == trials.c.id, allocation_slots.c.released_at.is_(None))
    )
    is_present = sa.or_(trials.c.ended_at.is_(None), trials.c.ended_at >= cutoff, held.exists())
    for some in _pieces(trial_ids):
        found |= set(conn.scalars(sa.select(trials.c.id).where(trials.c.id.in_(some), is_present)))
    return found


def _with_only_copies(conn: Connection, runs: Sequence[str]) -> set[str]:
    found: set[str] = set()
    of = checkpoints.c
    only = (
        of.removed_at.is_(None),
        of.copy_url.is_(None),
        sa.not_(of.path.like("/%")),
        sa.not_(of.path.like("%://%")),
    )
    for some in _pieces(runs):
        found |= set(conn.scalars(sa.select(of.run).where(of.run.in_(some), *only).distinct()))
    return found
