"""Hyperparameters and metric of all trials of an experiment, for parallel coordinates and scatter plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute, tagged
from airflow_provider_dtrain.api.found import config_of, experiment_entry
from airflow_provider_dtrain.api.importances import PENDING
from airflow_provider_dtrain.api.models.charts import HyperparameterColumn, Hyperparameters, Importance
from airflow_provider_dtrain.api.rows import ERRORS, point
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.search.dimensions import Dimension, dimensions, value_at
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
    entry = experiment_entry(call, experiment_id)
    config = config_of(call, entry)
    table = call.store.trial_table
    own = metric in (None, entry.view.metric)
    version = (table.version(experiment_id), None if own else call.store.curves.newest())
    space = dimensions(None if config is None else config.document.get("hyperparameters"))
    key = (call.store.store_id, experiment_id, metric)
    if (known := call.importances.known(key, version)) is not None:
        call.unless_known(version, known.note, False)
    trials = table.history(experiment_id)[-TRIALS_MOST:]
    if not own:
        trials = _judged_by(trials, table.last_metrics(experiment_id, str(metric)))
    smaller = entry.view.smaller_is_better
    found = call.importances.of(key, version, space, trials, smaller_is_better=smaller)
    # Another metric than the searcher's changes with each report of any trial, so an older result is good enough.
    is_pending = found is PENDING or (own and call.importances.known(key, version) is None)
    answer = Hyperparameters(
        names=[_column(one) for one in space],
        trial_id=[one.trial_id for one in trials],
        number=[one.number for one in trials],
        state=[one.state for one in trials],
        metric=[point(one.metric) for one in trials],
        columns={one.name: [value_at(trial.hparams, one.path) for trial in trials] for one in space if _varies(one)},
        importance=[Importance(name=name, value=value) for name, value in found.shares.items()],
        importance_note=found.note,
        is_importance_pending=is_pending,
    )
    return tagged(answer, call.tag(version, found.note, is_pending))  # type: ignore[return-value]


def _varies(of: Dimension) -> bool:
    return of.kind != "const"


def _judged_by(trials: Sequence[TrialFigures], metrics: Mapping[int, Any]) -> list[TrialFigures]:
    """Return trials with another metric than the searcher's."""
    return [replace(one, metric=point(metrics.get(one.trial_id))) for one in trials]


def _column(of: Dimension) -> HyperparameterColumn:
    return HyperparameterColumn(
        name=of.name, kind=of.kind, log=of.is_log, values=None if of.values is None else list(of.values)
    )
