"""Metrics and checkpoints that trials reported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from airflow_provider_dtrain.core.checkpoint_location import (
    CheckpointPlace,
    CheckpointPlaces,
    StorageKind,
    UntrustedPathError,
    shown_path,
)
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.metrics import MetricGroup, MetricReport
from airflow_provider_dtrain.store.database import statements
from airflow_provider_dtrain.store.database.connections import restore_floats
from airflow_provider_dtrain.store.database.moments import moment
from airflow_provider_dtrain.store.database.rows import AttemptRow, record_of
from airflow_provider_dtrain.store.database.tables import allocations, attempts, checkpoints, configs, metrics, trials
from airflow_provider_dtrain.store.database.transactions import Database, bump, reads, writes
from airflow_provider_dtrain.store.latest_metrics import keep_latest
from airflow_provider_dtrain.store.records.trials import CheckpointView
from airflow_provider_dtrain.store.views import run_name, store_mark

STEP_LIMIT = 2**63
#: Most paths that one event may report as removed; the training library removes one or two per save.
REMOVED_LIMIT = 500
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
#: Kind of an event -> group of its metrics.
METRIC_GROUPS: Mapping[str, MetricGroup] = {"report": "training", "validation": "validation", "builtin": "builtin"}


class Metrics:
    """Metrics of trials over all their attempts."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def of_trial(
        self, conn: Connection, trial_id: int, group: MetricGroup | None = None, *, rank: int | None = 0
    ) -> list[MetricReport]:
        """Return reported metrics by step, then in the order of their arrival.

        :param group: None = training and validation
        :param rank: reports of this rank; None = of all ranks
        """
        query = _metrics_query(group is not None, rank is not None)
        values = {"trial": trial_id, "group": group, "of_rank": rank}
        return [_metric_row(row) for row in statements.rows(conn, query, values)]

    @reads
    def page(
        self,
        conn: Connection,
        trial_id: int,
        group: str | None = None,
        *,
        with_abandoned: bool = False,
        offset: int = 0,
        limit: int | None = None,
    ) -> list[MetricReport]:
        """Return a page of the reports of rank 0, by step and then in the order of their arrival.

        :param group: None = training and validation
        :param with_abandoned: also steps that a later attempt repeated, see ``core.lifecycle.current_branch``
        :param limit: None = all from the offset on
        """
        own = (metrics.c.trial_id == trial_id, metrics.c.rank == 0)
        where = [*own, metrics.c.metric_group == group if group is not None else _IS_REPORTED]
        if not with_abandoned:
            firsts = sa.select(attempts.c.number, sa.func.min(metrics.c.step).label("step")).select_from(_REPORTS)
            found = conn.execute(firsts.where(*own).group_by(attempts.c.number))
            where += _current([(row.number, row.step) for row in found])
        query = sa.select(metrics, attempts.c.number).select_from(_REPORTS).where(*where)
        query = query.order_by(metrics.c.step, metrics.c.id).offset(offset).limit(limit)
        return [_metric_row(row) for row in conn.execute(query)]

    @reads
    def since(self, conn: Connection, trial_id: int, after: int, *, limit: int) -> list[tuple[int, MetricReport]]:
        """Return reports of rank 0 in the order of their arrival, each with its id.

        :param after: id of the last report that the caller has; 0 = none
        """
        values = {"trial": trial_id, "after": after, "most": limit}
        return [(row.id, _metric_row(row)) for row in statements.rows(conn, _SINCE, values)]


class Checkpoints:
    """Checkpoints of trials over all their attempts."""

    def __init__(self, db: Database) -> None:
        self.db = db

    @reads
    def of_trial(self, conn: Connection, trial_id: int, *, removed: bool = False) -> list[CheckpointView]:
        """Return a trial's checkpoints, oldest first, without refused ones.

        :param removed: True: also removed checkpoints
        """
        found = _as_checkpoints(statements.rows(conn, _EVER_SAVED if removed else _SAVED, {"trial": trial_id}))
        return [one for one in found if one.refused is None]

    @reads
    def refused(self, conn: Connection, trial_id: int) -> list[CheckpointView]:
        """Return the checkpoints that a trial reported outside its places, oldest first."""
        found = _as_checkpoints(statements.rows(conn, _EVER_SAVED, {"trial": trial_id}))
        return [one for one in found if one.refused is not None]

    @reads
    def of_experiment(self, conn: Connection, experiment_id: int) -> list[CheckpointView]:
        """Return the existing checkpoints of an experiment's trials, oldest first.

        Checkpoints with hyperparameters that were refused and replaced since have no metrics here, so that none of
        them can be selected as a best one.
        """
        own = sa.select(trials.c.id).where(trials.c.experiment_id == experiment_id)
        where = (checkpoints.c.trial_id.in_(own), _IS_THERE)
        refused = set(conn.scalars(sa.select(checkpoints.c.id).join(attempts).where(*where, _IS_OF_REFUSED_HPARAMS)))
        found = [one for one in _checkpoint_views(conn, *where) if one.refused is None]
        return [replace(one, metrics={}) if one.checkpoint_id in refused else one for one in found]

    @reads
    def missing(self, conn: Connection, experiment_id: int) -> list[int]:
        """Return the running trials of an experiment that have no checkpoint, in the order of their ids."""
        saved = sa.select(checkpoints.c.id).where(
            checkpoints.c.trial_id == trials.c.id, checkpoints.c.refused.is_(None), _IS_THERE
        )
        where = (trials.c.experiment_id == experiment_id, trials.c.state == "running", sa.not_(saved.exists()))
        return [int(one) for one in conn.scalars(sa.select(trials.c.id).where(*where).order_by(trials.c.id))]

    @reads
    def find(self, conn: Connection, url: str) -> CheckpointView | None:
        """Return the newest checkpoint with this path, or with a copy at this URL, None without one."""
        same = sa.or_(checkpoints.c.copy_url == url, checkpoints.c.path == url)
        found = [one for one in _checkpoint_views(conn, same, _IS_THERE) if one.refused is None]
        return found[-1] if found else None

    @writes
    def mark_removed(self, conn: Connection, checkpoint_ids: Sequence[int]) -> None:
        """Record that checkpoints and their copies were removed."""
        where = checkpoints.c.id.in_(list(checkpoint_ids)), _IS_THERE
        conn.execute(checkpoints.update().where(*where).values(removed_at=self.db.now(), copy_url=None))

    @writes
    def add_copy(self, conn: Connection, checkpoint_id: int, url: str | None, *, size_bytes: int | None = None) -> None:
        """Store the location of a checkpoint's copy.

        :param url: None = the copy was removed
        :param size_bytes: as counted during the copy, which replaces the reported size; None = not counted
        :raises NotFoundError: there is no such checkpoint
        """
        where = checkpoints.c.id == checkpoint_id
        counted = {"size_bytes": size_bytes} if size_bytes is not None else {}
        if not conn.execute(checkpoints.update().where(where).values(copy_url=url, **counted)).rowcount:
            raise NotFoundError(f"There is no checkpoint {checkpoint_id}.")


#: A checkpoint exists while it is not removed, or has a copy.
_IS_THERE = sa.or_(checkpoints.c.removed_at.is_(None), checkpoints.c.copy_url.is_not(None))

#: The program has reported it.
_IS_REPORTED = metrics.c.metric_group != "builtin"

_LATER = attempts.alias("later")
_IS_OF_REFUSED_HPARAMS = sa.and_(
    sa.exists().where(trials.c.id == checkpoints.c.trial_id, trials.c.draw > 0),
    sa.exists().where(
        _LATER.c.trial_id == checkpoints.c.trial_id,
        _LATER.c.number >= attempts.c.number,
        _LATER.c.failure["error"].as_string() == "InvalidHPError",
    ),
)


_SINCE = (
    sa.select(metrics, attempts.c.number)
    .join(attempts, attempts.c.id == metrics.c.attempt_id)
    .where(
        metrics.c.trial_id == sa.bindparam("trial"),
        metrics.c.rank == 0,
        _IS_REPORTED,
        metrics.c.id > sa.bindparam("after"),
    )
    .order_by(metrics.c.id)
    .limit(sa.bindparam("most"))
)


def _metric_row(row: Row[Any]) -> MetricReport:
    of = {"group": row.metric_group, "metrics": restore_floats(row.metrics), "attempt": row.number}
    return record_of(MetricReport, row, **of)


_REPORTS = metrics.join(attempts, attempts.c.id == metrics.c.attempt_id)


def _current(firsts: Sequence[tuple[int, int]]) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for reports that no later attempt replaced.

    :param firsts: number and first reported step of each attempt
    """
    found: list[sa.ColumnElement[bool]] = []
    least: int | None = None
    for number, step in sorted(firsts, reverse=True):
        # A later attempt that began at an earlier step replaces more than this one does.
        if least is None or step < least:
            least = step
            found.append(sa.or_(attempts.c.number >= number, metrics.c.step < step))
    return found


@cache
def _metrics_query(has_group: bool, has_rank: bool) -> sa.Select[Any]:
    where = [metrics.c.trial_id == sa.bindparam("trial")]
    where.append(metrics.c.metric_group == sa.bindparam("group") if has_group else _IS_REPORTED)
    where += [metrics.c.rank == sa.bindparam("of_rank")] if has_rank else []
    query = sa.select(metrics, attempts.c.number).join(attempts, attempts.c.id == metrics.c.attempt_id)
    return query.where(*where).order_by(metrics.c.step, metrics.c.id)


#: ``checkpoint_storage`` in the configuration of the row's trial.
_STORAGE = configs.c.document["checkpoint_storage"].label("storage")
_CHECKPOINTS: sa.Select[Any] = (
    sa.select(checkpoints, attempts.c.number, trials.c.experiment_id, _STORAGE)
    .join(attempts, attempts.c.id == checkpoints.c.attempt_id)
    .join(trials, trials.c.id == checkpoints.c.trial_id)
    .join(configs, configs.c.config_id == trials.c.config_id)
    .order_by(checkpoints.c.id)
)
_EVER_SAVED = _CHECKPOINTS.where(checkpoints.c.trial_id == sa.bindparam("trial"))
_SAVED = _CHECKPOINTS.where(checkpoints.c.trial_id == sa.bindparam("trial"), _IS_THERE)
_PLACES = (
    sa.select(trials.c.experiment_id, _STORAGE)
    .join(configs, configs.c.config_id == trials.c.config_id)
    .where(trials.c.id == sa.bindparam("trial"))
)


def _checkpoint_views(conn: Connection, *where: sa.ColumnElement[bool]) -> list[CheckpointView]:
    return _as_checkpoints(conn.execute(_CHECKPOINTS.where(*where)))


def _as_checkpoints(rows: Iterable[Row[Any]]) -> list[CheckpointView]:
    return [_as_checkpoint(row) for row in rows]


def _as_checkpoint(row: Row[Any]) -> CheckpointView:
    # Checked at each read, because a row may be older than the check at its insertion.
    place, refused = _find(CheckpointPlaces.of(row.storage, row.experiment_id, row.trial_id), row.path)
    return record_of(
        CheckpointView,
        row,
        checkpoint_id=row.id,
        attempt=row.number,
        metrics=restore_floats(row.metrics),
        place=place if row.refused is None else None,
        refused=row.refused or refused,
    )


def _find(places: CheckpointPlaces, path: object) -> tuple[CheckpointPlace | None, str | None]:
    """Return a checkpoint's place, or the reason why its path is refused."""
    try:
        return places.find(path), None
    except UntrustedPathError as error:
        return None, str(error)


def add_metrics(
    conn: Connection,
    attempt: AttemptRow,
    reports: Sequence[Mapping[str, Any]],
    *,
    rank: int,
    clock_offset_s: float = 0.0,
) -> None:
    """Store reports with one statement. A report without step or metrics is kept only as an event.

    :param reports: events of the kinds in :data:`METRIC_GROUPS`
    :param clock_offset_s: seconds by which the clock of the reports is ahead of this one
    """
    rows = [
        {
            "trial_id": attempt.trial_id,
            "attempt_id": attempt.id,
            "metric_group": METRIC_GROUPS[event["kind"]],
            "step": event["step"],
            "rank": rank,
            "metrics": dict(event["metrics"]),
            "at": moment(at - clock_offset_s if isinstance(at := event.get("at"), int | float) else None),
            "epoch": _epoch(event.get("epoch")),
        }
        for event in reports
        if _is_step(event.get("step")) and isinstance(event.get("metrics"), Mapping)
    ]
    if rows:
        statements.add(conn, metrics, *rows)
    if rows and not rank:
        keep_latest(conn, attempt.trial_id, rows)


def add_checkpoint(conn: Connection, attempt: AttemptRow, event: Mapping[str, Any], *, at: datetime) -> None:
    """Store a reported checkpoint. A checkpoint without step or path is kept only as an event.

    A checkpoint outside the trial's places is stored as refused: its path is shown, but never used.
    """
    step = event.get("step")
    path = event.get("path")
    values = event.get("metrics")
    size = event.get("size_bytes")
    if not _is_step(step) or not isinstance(path, str):
        return
    places = _places(conn, attempt.trial_id)
    place, refused = _find(places, path)
    sha256 = event.get("sha256")
    run = run_name(store_mark(conn), attempt.trial_id, attempt.number, event["token"])
    conn.execute(
        checkpoints.insert().values(
            trial_id=attempt.trial_id,
            attempt_id=attempt.id,
            run=run,
            host=event["host"],
            step=step,
            path=shown_path(path) if place is None else place.path,
            size_bytes=size if _is_step(size) else None,
            sha256=sha256 if isinstance(sha256, str) and _SHA256.fullmatch(sha256) else None,
            metrics=dict(values) if isinstance(values, Mapping) else {},
            at=at,
            refused=refused,
            # An existing checkpoint has no such time, and this one is not used.
            removed_at=at if refused else None,
        )
    )
    if place is None:
        return
    _note_preemptible(conn, attempt)
    _note_removed(conn, attempt, run, places, event.get("removed"), at=at)


def _places(conn: Connection, trial_id: int) -> CheckpointPlaces:
    row = statements.first(conn, _PLACES, {"trial": trial_id})
    return CheckpointPlaces.of(row.storage, row.experiment_id, trial_id)


def _note_preemptible(conn: Connection, attempt: AttemptRow) -> None:
    """Record with the first checkpoint of a gang that it can be preempted from now on."""
    where = (allocations.c.id == attempt.allocation_id, sa.not_(allocations.c.has_checkpoint))
    first = allocations.update().where(*where).values(has_checkpoint=True).returning(allocations.c.pool)
    pool = conn.scalar(first)
    if pool is not None:
        bump(conn, pool)


def _note_removed(
    conn: Connection, attempt: AttemptRow, run: str, places: CheckpointPlaces, paths: Any, *, at: datetime
) -> None:
    """Mark checkpoints as removed that a rank reports as such.

    They must be of its own run, or of its trial in the configured storage.
    """
    named = [_find(places, path)[0] for path in paths[:REMOVED_LIMIT]] if isinstance(paths, list) else []
    deleted = {place for place in named if place is not None}
    for is_in_run in (True, False):
        of_kind = [place.path for place in deleted if (place.kind is StorageKind.RUN) is is_in_run]
        where = [checkpoints.c.trial_id == attempt.trial_id, checkpoints.c.path.in_(of_kind)]
        where += [checkpoints.c.run == run] if is_in_run else []
        if of_kind:
            conn.execute(checkpoints.update().where(*where, checkpoints.c.removed_at.is_(None)).values(removed_at=at))


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < STEP_LIMIT


def _epoch(value: Any) -> float | None:
    """Return a number of trained epochs, None if a host has sent anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value < STEP_LIMIT else None
