"""Hyperparameters and metric of all trials of an experiment, for parallel coordinates and scatter plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.found import experiment_plan, plan_config
from airflow_provider_dtrain.api.importances import PENDING
from airflow_provider_dtrain.api.models.charts import HyperparameterColumn, Hyperparameters, Importance
from airflow_provider_dtrain.api.rows import ERRORS, point
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.search.dimensions import Dimension, dimensions, value_at
from airflow_provider_dtrain.search.importance import ImportanceResult
from airflow_provider_dtrain.store.records.pages import TrialFigures

router = APIRouter(route_class=StoreRoute, tags=["charts"], responses=ERRORS)

#: Most trials of one chart, the latest ones.
TRIALS_MOST = 20_000


@router.get("/experiments/{experiment_id}/hyperparameters", **guarded(Rule.READ))
def hyperparameters(
    call: CallDep,
    experiment_id: int,
    metric: Annotated[str | None, Query(max_length=1000, description="the searcher's without it")] = None,
) -> Hyperparameters:
    """Return hyperparameters and metric of an experiment's trials as columns, with the importance of each."""
    plan = experiment_plan(call, experiment_id)
    table = call.store.trial_table
    own = metric in (None, plan.metric)
    version = (table.version(experiment_id), None if own else call.store.curves.newest())
    config = plan_config(call, plan)
    space = dimensions(None if config is None else config.document.get("hyperparameters"))
    key = (call.store.store_id, experiment_id, metric)

    def figures() -> list[TrialFigures]:
        trials = table.history(experiment_id, most=TRIALS_MOST)
        return trials if own else _judged_by(trials, table.last_metrics(experiment_id, str(metric)))

    known = call.importances.known(key, version)
    if known is not None:
        return call.answer(version, known.note, False, make=lambda: _record(space, figures(), known, False))
    found = call.importances.of(key, version, space, figures, smaller_is_better=plan.smaller_is_better)
    # Another metric than the searcher's changes with each report of any trial, so an older result is good enough.
    is_pending = found is PENDING or (own and call.importances.known(key, version) is None)
    of = (found.note, is_pending, found.shares)
    return call.answer(version, *of, make=lambda: _record(space, figures(), found, is_pending))


def _record(
    space: Sequence[Dimension], trials: Sequence[TrialFigures], found: ImportanceResult, is_pending: bool
) -> dict[str, Any]:
    """Return the fields of ``Hyperparameters``, unchecked: it has 100,000 values."""
    return {
        "names": [_column(one) for one in space],
        "trial_id": [one.trial_id for one in trials],
        "number": [one.number for one in trials],
        "state": [one.state for one in trials],
        "metric": [point(one.metric) for one in trials],
        "columns": {one.name: [value_at(trial.hparams, one.path) for trial in trials] for one in space if _varies(one)},
        "importance": [Importance(name=name, value=value) for name, value in found.shares.items()],
        "importance_note": found.note,
        "is_importance_pending": is_pending,
    }


def _varies(of: Dimension) -> bool:
    return of.kind != "const"


def _judged_by(trials: Sequence[TrialFigures], metrics: Mapping[int, Any]) -> list[TrialFigures]:
    """Return trials with another metric than the searcher's."""
    return [replace(one, metric=point(metrics.get(one.trial_id))) for one in trials]


def _column(of: Dimension) -> HyperparameterColumn:
    return HyperparameterColumn(
        name=of.name, kind=of.kind, log=of.is_log, values=None if of.values is None else list(of.values)
    )
