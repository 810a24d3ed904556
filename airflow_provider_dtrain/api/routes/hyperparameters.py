"""Hyperparameters and metric of all trials of an experiment, for parallel coordinates and scatter plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import Metric
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.importances import PENDING, Judged
from airflow_provider_dtrain.api.models.charts import HyperparameterColumn, Hyperparameters, Importance
from airflow_provider_dtrain.api.rows import ERRORS, point
from airflow_provider_dtrain.api.samples import parsed
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_SUCCEEDED
from airflow_provider_dtrain.core.search.dimensions import Dimension, dimensions
from airflow_provider_dtrain.core.search.importance import MOST, ImportanceResult
from airflow_provider_dtrain.store.queries.experiments import plan_config
from airflow_provider_dtrain.store.queries.rights import readable_plan
from airflow_provider_dtrain.store.records.pages import TrialColumns
from airflow_provider_dtrain.store.store import Store

router = APIRouter(route_class=StoreRoute, tags=["charts"], responses=ERRORS)

#: Most trials of one chart, the latest ones.
TRIALS_MOST = 20_000


@router.get("/experiments/{experiment_id}/hyperparameters", **guarded(Rule.READ))
def hyperparameters(
    call: CallDep,
    experiment_id: int,
    metric: Annotated[Metric | None, Query(description="the searcher's without it")] = None,
) -> Hyperparameters:
    """Return hyperparameters and metric of an experiment's trials as columns, with the importance of each."""
    plan = readable_plan(call.store, call.access, experiment_id)
    store, importances = call.store, call.importances
    other = None if metric == plan.metric else metric
    version = (store.trial_table.version(experiment_id), None if other is None else store.curves.newest())
    config = plan_config(call.store, plan)
    space = dimensions(None if config is None else config.document.get("hyperparameters"))
    key = (store.store_id, experiment_id, metric)
    known = importances.known(key, version)
    found = known or importances.latest(key)
    # Another metric than the searcher's changes with each report of any trial, so an older result is good enough.
    is_pending = found is PENDING or (other is None and known is None)

    def make() -> dict[str, Any]:
        trials = _trials(store, experiment_id, other)
        columns = call.samples.columns(store, experiment_id, [one for one in space if _varies(one)], trials)
        return _record(space, trials, columns, found, is_pending)

    try:
        return call.answer(version, found.note, is_pending, found.shares, found.chances, make=make)
    finally:
        smaller = plan.smaller_is_better
        importances.start(key, version, space, lambda: _judged(store, experiment_id, other), smaller_is_better=smaller)


def _trials(store: Store, experiment_id: int, other: str | None) -> TrialColumns:
    """Return the trials of the chart.

    :param other: a metric that replaces the searcher's
    """
    trials = store.trial_table.columns(experiment_id, most=TRIALS_MOST)
    if other is None:
        return trials
    metrics = store.trial_table.last_metrics(experiment_id, other)
    return replace(trials, metrics=[point(metrics.get(trial_id)) for trial_id in trials.trial_ids])


def _judged(store: Store, experiment_id: int, other: str | None) -> list[Judged]:
    """Return hyperparameters and metric of the latest ended trials that have one."""
    trials = _trials(store, experiment_id, other)
    metrics = {
        trial_id: metric
        for trial_id, state, metric in zip(trials.trial_ids, trials.states, trials.metrics, strict=True)
        if state in TRIAL_SUCCEEDED and point(metric) is not None
    }
    samples = store.trial_table.samples(experiment_id, list(metrics)[-MOST:])
    return [(hparams, metrics[one]) for one, hparams in zip(samples, parsed(samples), strict=True)]


def _record(
    space: Sequence[Dimension],
    trials: TrialColumns,
    columns: Mapping[str, Sequence[Any]],
    found: ImportanceResult,
    is_pending: bool,
) -> dict[str, Any]:
    """Return the fields of ``Hyperparameters``, unchecked: it has 100,000 values."""
    return {
        "names": [_column(one) for one in space],
        "trial_id": trials.trial_ids,
        "number": trials.numbers,
        "state": trials.states,
        # NaN and infinities become null in the answer.
        "metric": trials.metrics,
        "columns": columns,
        "importance": [
            Importance(name=name, value=value, chance=found.chances.get(name)) for name, value in found.shares.items()
        ],
        "importance_note": found.note,
        "is_importance_pending": is_pending,
    }


def _varies(of: Dimension) -> bool:
    return of.kind != "const"


def _column(of: Dimension) -> HyperparameterColumn:
    return HyperparameterColumn(
        name=of.name, kind=of.kind, log=of.is_log, values=None if of.values is None else list(of.values)
    )
