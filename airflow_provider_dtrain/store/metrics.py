"""Metrics and checkpoints that trials reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store import fast
from airflow_provider_dtrain.store.base import Base, bump, reads, writes
from airflow_provider_dtrain.store.engine import restore_floats
from airflow_provider_dtrain.store.fast import Statement
from airflow_provider_dtrain.store.records import CheckpointView, MetricGroup, MetricRow
from airflow_provider_dtrain.store.tables import allocations, attempts, checkpoints, metrics, trials
from airflow_provider_dtrain.store.views import run_name, store_mark

STEP_LIMIT = 2**63


class Metrics(Base):
    """Curves and checkpoints of a trial over all its attempts."""

    @reads
    def metrics(
        self, conn: Connection, trial_id: int, group: MetricGroup | None = None, *, rank: int | None = 0
    ) -> list[MetricRow]:
        """Return reported metrics by step, then in the order in which they came.

        :param group: None = both
        :param rank: reports of this rank; None = of all ranks
        """
        query = _metrics_query(group is not None, rank is not None)
        return [
            MetricRow(
                step=row.step, group=row.metric_group, metrics=restore_floats(row.metrics), epoch=row.epoch, at=row.at,
                attempt=row.number, rank=row.rank,
            )
            for row in fast.rows(conn, query, {"trial": trial_id, "group": group, "of_rank": rank})
        ]  # fmt: skip

    @reads
    def checkpoints(self, conn: Connection, trial_id: int, *, removed: bool = False) -> list[CheckpointView]:
        """Return a trial's checkpoints, oldest first.

        :param removed: also those that are gone
        """
        return _as_checkpoints(fast.rows(conn, _EVER_SAVED if removed else _SAVED, {"trial": trial_id}))

    @reads
    def experiment_checkpoints(self, conn: Connection, experiment_id: int) -> list[CheckpointView]:
        """Return the checkpoints that an experiment's trials still have, oldest first.

        Those of hyperparameters that were refused, and drawn again since, come without metrics: they are among the
        best of nothing.
        """
        own = sa.select(trials.c.id).where(trials.c.experiment_id == experiment_id)
        where = (checkpoints.c.trial_id.in_(own), _IS_THERE)
        refused = set(conn.scalars(sa.select(checkpoints.c.id).join(attempts).where(*where, _IS_REFUSED)))
        found = _checkpoint_views(conn, *where)
        return [replace(one, metrics={}) if one.checkpoint_id in refused else one for one in found]

    @reads
    def find_checkpoint(self, conn: Connection, url: str) -> CheckpointView | None:
        """Return the newest checkpoint that lies at a path or URL, or whose copy does; None without one."""
        found = _checkpoint_views(conn, sa.or_(checkpoints.c.copy_url == url, checkpoints.c.path == url), _IS_THERE)
        return found[-1] if found else None

    @writes
    def mark_removed(self, conn: Connection, checkpoint_ids: Sequence[int]) -> None:
        """Note that checkpoints and their copies are gone."""
        where = checkpoints.c.id.in_(list(checkpoint_ids)), _IS_THERE
        conn.execute(checkpoints.update().where(*where).values(removed_at=self._now(), copy_url=None))

    @writes
    def add_checkpoint_copy(self, conn: Connection, checkpoint_id: int, url: str | None) -> None:
        """Note where a copy of a checkpoint lies; None: there is none any more.

        :raises NotFoundError: there is no such checkpoint
        """
        where = checkpoints.c.id == checkpoint_id
        if not conn.execute(checkpoints.update().where(where).values(copy_url=url)).rowcount:
            raise NotFoundError(f"There is no checkpoint {checkpoint_id}.")


#: Not removed; what was removed but has a copy is still there.
_IS_THERE = sa.or_(checkpoints.c.removed_at.is_(None), checkpoints.c.copy_url.is_not(None))

_LATER = attempts.alias("later")
_IS_REFUSED = sa.and_(
    sa.exists().where(trials.c.id == checkpoints.c.trial_id, trials.c.draw > 0),
    sa.exists().where(
        _LATER.c.trial_id == checkpoints.c.trial_id,
        _LATER.c.number >= attempts.c.number,
        _LATER.c.failure["error"].as_string() == "InvalidHPError",
    ),
)


@cache
def _metrics_query(has_group: bool, has_rank: bool) -> Statement:
    where = [metrics.c.trial_id == sa.bindparam("trial")]
    where += [metrics.c.metric_group == sa.bindparam("group")] if has_group else []
    where += [metrics.c.rank == sa.bindparam("of_rank")] if has_rank else []
    query = sa.select(metrics, attempts.c.number).join(attempts, attempts.c.id == metrics.c.attempt_id)
    return Statement(query.where(*where).order_by(metrics.c.step, metrics.c.id))


_CHECKPOINTS: sa.Select[Any] = (
    sa.select(checkpoints, attempts.c.number)
    .join(attempts, attempts.c.id == checkpoints.c.attempt_id)
    .order_by(checkpoints.c.id)
)
_EVER_SAVED = Statement(_CHECKPOINTS.where(checkpoints.c.trial_id == sa.bindparam("trial")))
_SAVED = Statement(_CHECKPOINTS.where(checkpoints.c.trial_id == sa.bindparam("trial"), _IS_THERE))


def _checkpoint_views(conn: Connection, *where: sa.ColumnElement[bool]) -> list[CheckpointView]:
    return _as_checkpoints(conn.execute(_CHECKPOINTS.where(*where)))


def _as_checkpoints(rows: Iterable[Row[Any]]) -> list[CheckpointView]:
    names = ("trial_id", "run", "host", "step", "path", "size_bytes", "sha256", "at", "copy_url", "removed_at")
    return [
        CheckpointView(
            **{name: getattr(row, name) for name in names},
            checkpoint_id=row.id,
            attempt=row.number,
            metrics=restore_floats(row.metrics),
        )
        for row in rows
    ]


def add_metrics(
    conn: Connection, attempt: Row[Any], group: MetricGroup, event: Mapping[str, Any], *, rank: int, at: datetime
) -> None:
    """Store a report; one without a step or without metrics stays an event only."""
    step, values, epoch = event.get("step"), event.get("metrics"), event.get("epoch")
    if not _is_step(step) or not isinstance(values, Mapping):
        return
    fast.add(conn, metrics, {
        "trial_id": attempt.trial_id, "attempt_id": attempt.id, "metric_group": group, "step": step, "rank": rank,
        "epoch": epoch if isinstance(epoch, int | float) else None, "metrics": dict(values), "at": at,
    })  # fmt: skip


def add_checkpoint(conn: Connection, attempt: Row[Any], event: Mapping[str, Any], *, at: datetime) -> None:
    """Store a reported checkpoint; one without step or path stays an event only."""
    step, path, values, size = event.get("step"), event.get("path"), event.get("metrics"), event.get("size_bytes")
    if not _is_step(step) or not isinstance(path, str) or ".." in path.split("/") or "\0" in path:
        return
    run = run_name(store_mark(conn), attempt.trial_id, attempt.number, event["token"])
    conn.execute(
        checkpoints.insert().values(
            trial_id=attempt.trial_id, attempt_id=attempt.id, run=run, host=event["host"], step=step,
            path=path, size_bytes=size if _is_step(size) else None,
            sha256=str(event["sha256"])[:64] if event.get("sha256") else None,
            metrics=dict(values) if isinstance(values, Mapping) else {}, at=at,
        )
    )  # fmt: skip
    _note_preemptible(conn, attempt)
    _note_removed(conn, attempt, run, event.get("removed"), at=at)


def _note_preemptible(conn: Connection, attempt: Row[Any]) -> None:
    """Note with the first checkpoint of a gang that it can be interrupted from now on."""
    where = (allocations.c.id == attempt.allocation_id, sa.not_(allocations.c.has_checkpoint))
    first = allocations.update().where(*where).values(has_checkpoint=True).returning(allocations.c.pool)
    pool = conn.scalar(first)
    if pool is not None:
        bump(conn, pool)


def _note_removed(conn: Connection, attempt: Row[Any], run: str, paths: Any, *, at: datetime) -> None:
    """Apply what a rank says it removed: checkpoints of its own run, or of its trial on shared storage."""
    gone = [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []
    if gone:
        own = sa.or_(checkpoints.c.run == run, checkpoints.c.path.like("/%"), checkpoints.c.path.like("%://%"))
        where = (checkpoints.c.trial_id == attempt.trial_id, checkpoints.c.path.in_(gone), own)
        conn.execute(checkpoints.update().where(*where, checkpoints.c.removed_at.is_(None)).values(removed_at=at))


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < STEP_LIMIT
