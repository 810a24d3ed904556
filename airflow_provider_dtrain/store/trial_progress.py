"""Progress of running trials, from the first and latest reports of their attempts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_provider_dtrain.core.lifecycle.inference_progress import as_trial_progress, inference_progress
from airflow_provider_dtrain.core.search.trial_progress import (
    ProgressReport,
    Reports,
    TrialLength,
    TrialProgress,
    progress_of,
)
from airflow_provider_dtrain.store.database.filters import in_states
from airflow_provider_dtrain.store.database.tables import attempts, configs, metrics, trials
from airflow_provider_dtrain.store.shards import shard_counts

#: Most running trials of one answer whose progress is computed.
TRIALS_MOST = 500
#: Running trials whose mean stands for all of an experiment: the latest ones.
EXPERIMENT_SAMPLE = 50


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """Progress of a running trial of an experiment."""

    experiment_id: int
    progress: TrialProgress


def progress_of_experiments(
    conn: Connection, where: sa.ColumnElement[bool], now: datetime
) -> dict[int, list[TrialProgress]]:
    """Return the progress of at most 50 running trials of each experiment.

    :param where: condition on trials
    """
    place = sa.func.row_number().over(partition_by=trials.c.experiment_id, order_by=trials.c.id.desc())
    ranked = sa.select(trials.c.id, place.label("place")).where(in_states(["running"]), where).subquery()
    sample = sa.select(ranked.c.id).where(ranked.c.place <= EXPERIMENT_SAMPLE)
    found: dict[int, list[TrialProgress]] = {}
    for one in running_progress(conn, trials.c.id.in_(sample), now).values():
        found.setdefault(one.experiment_id, []).append(one.progress)
    return found


def running_progress(conn: Connection, where: sa.ColumnElement[bool], now: datetime) -> dict[int, RunningTrial]:
    """Return the progress of the running trials that match, by a fixed number of queries. At most the 500 latest.

    :param where: condition on trials
    """
    rows = conn.execute(_RUNNING.where(where).order_by(trials.c.id.desc()).limit(TRIALS_MOST)).all()
    shards = _of_shards(conn, [row.id for row in rows if row.inference], now)
    names = ("first_training", "last_training", "first_validation", "last_validation")
    reports = _reports(conn, {getattr(row, name) for row in rows for name in names} - {None})
    return {
        row.id: RunningTrial(
            experiment_id=row.experiment_id,
            progress=shards.get(row.id) or progress_of(_plan(row), _of(row, reports), now),
        )
        for row in rows
    }


def _of_shards(conn: Connection, trial_ids: list[int], now: datetime) -> dict[int, TrialProgress]:
    """Return the progress of batch inferences that have counted their shards."""
    found = shard_counts(conn, trial_ids) if trial_ids else {}
    at = now.timestamp()
    return {
        trial_id: as_trial_progress(inference_progress(counts, now_s=at, is_live=True), now)
        for trial_id, counts in found.items()
    }


def _end(group: str, *, latest: bool) -> sa.Label[Any]:
    """Return the id of the first or latest report of the running attempt, by an index."""
    step = metrics.c.step.desc() if latest else metrics.c.step.asc()
    query = sa.select(metrics.c.id).where(metrics.c.attempt_id == attempts.c.id, metrics.c.metric_group == group)
    name = f"{'last' if latest else 'first'}_{group}"
    return query.order_by(step).limit(1).correlate(attempts).scalar_subquery().label(name)


_RUNNING = (
    sa.select(
        trials.c.id,
        trials.c.experiment_id,
        trials.c.hparams["global_batch_size"].label("global_batch"),
        configs.c.document["searcher"].label("searcher"),
        configs.c.document["records_per_epoch"].label("records_per_epoch"),
        configs.c.document["inference"].label("inference"),
        _end("training", latest=False),
        _end("training", latest=True),
        _end("validation", latest=False),
        _end("validation", latest=True),
    )
    .select_from(
        trials.join(attempts, sa.and_(attempts.c.trial_id == trials.c.id, attempts.c.ended_at.is_(None))).join(
            configs, configs.c.config_id == trials.c.config_id
        )
    )
    .where(trials.c.state == "running")
)


def _reports(conn: Connection, ids: set[int]) -> dict[int, ProgressReport]:
    if not ids:
        return {}
    names = ("id", "step", "epoch", "at")
    rows = conn.execute(sa.select(*(metrics.c[name] for name in names)).where(metrics.c.id.in_(ids)))
    return {row.id: ProgressReport(step=row.step, epoch=row.epoch, at=row.at) for row in rows}


def _plan(row: Any) -> TrialLength:
    return TrialLength.of(row.searcher, row.global_batch, row.records_per_epoch)


def _of(row: Any, reports: dict[int, ProgressReport]) -> Reports | None:
    """Return the reports of a trial, None before the first."""
    first = [reports[end] for end in (row.first_training, row.first_validation) if end in reports]
    latest = [reports[end] for end in (row.last_training, row.last_validation) if end in reports]
    if not first or not latest:
        return None
    return Reports(
        first=min(first, key=lambda one: one.step),
        latest=max(latest, key=lambda one: one.step),
        validation=reports.get(row.last_validation),
    )
