"""Charts: curves of trials, hyperparameters, and the comparison of trials."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import COMPARED_MOST, TRIALS_MOST, ComparedIds, Metric, MetricFilter, TrialIds
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.curve_rows import curve_of, metric_series
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.charts import Axis, ComparedTrial, Comparison, Curves
from airflow_provider_dtrain.api.models.trials import TrialCurves
from airflow_provider_dtrain.api.prepared import as_json, with_list
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.resources.metrics import MetricGroup, MetricName
from airflow_provider_dtrain.resources.trials import TrialSummary
from airflow_provider_dtrain.store.curves import REPORTED
from airflow_provider_dtrain.store.queries.metric_names import shown_names
from airflow_provider_dtrain.store.queries.rights import readable_plan
from airflow_provider_dtrain.store.queries.trials import readable_trials, trials_by_id
from airflow_provider_dtrain.store.records.pages import TrialChoice, TrialHead
from airflow_provider_dtrain.store.records.trials import Config

router = APIRouter(route_class=StoreRoute, tags=["charts"], responses=ERRORS)

#: Metrics of an answer whose request names none.
METRICS_USUAL = 20
Points = Annotated[int, Query(ge=10, le=10_000, description="points per curve")]


@router.get("/experiments/{experiment_id}/curves", **guarded(Rule.READ))
def experiment_curves(
    call: CallDep,
    experiment_id: int,
    metric: Annotated[Metric | None, Query(description="the searcher's without it")] = None,
    group: MetricGroup = "validation",
    x: Axis = "batches",
    select: Annotated[TrialChoice, Query()] = "best",
    limit: Annotated[int, Query(ge=1, le=TRIALS_MOST)] = 100,
    trial: TrialIds = None,
    max_points: Points = 2000,
) -> Curves:
    """Return a metric of an experiment's trials. Trials in the request come in addition to the selected ones."""
    plan = readable_plan(call.store, call.access, experiment_id)
    name = metric or plan.metric
    chosen, total = call.store.trial_table.chosen(experiment_id, select, limit)
    heads = readable_trials(call.store, call.access, trial or [])
    asked = {one.trial_id for one in heads}
    heads += call.store.trial_table.heads([one for one in chosen if one not in asked])
    if name is None:
        none = Curves(metric="", group=group, x=x, total_trials=total, series=[])
        return call.answer(total, make=lambda: none)
    best = call.store.experiment_table.best_trial(experiment_id)
    return _curves(call, heads[:TRIALS_MOST], name, group, x, max_points, total=total, best=best)


@router.get("/curves", **guarded(Rule.READ))
def curves(
    call: CallDep,
    metric: Metric,
    trial: TrialIds = None,
    group: MetricGroup = "validation",
    x: Axis = "batches",
    max_points: Points = 2000,
) -> Curves:
    """Return a metric of some trials, which may be of different experiments."""
    ids = list(dict.fromkeys(trial or []))
    if not ids:
        raise UserError(f"trial must be given 1 to {TRIALS_MOST} times, got 0.")
    heads = readable_trials(call.store, call.access, ids)
    return _curves(call, heads, metric, group, x, max_points, total=len(ids), best=None)


def _curves(
    call: Call,
    heads: list[TrialHead],
    metric: str,
    group: MetricGroup,
    x: Axis,
    points: int,
    *,
    total: int,
    best: int | None,
) -> Any:
    versions = call.store.curves.versions([one.trial_id for one in heads])
    shown = (call.store.store_id, metric, group, x, points, len(heads))
    keys: dict[int, Hashable] = {
        one.trial_id: (*shown, one, one.trial_id == best, versions.get(one.trial_id)) for one in heads
    }

    def make() -> bytes:
        parts = call.kept.known(keys.values())
        changed = {one.trial_id: one for one in heads if keys[one.trial_id] not in parts}
        found = call.store.curves.of_trials(list(changed), metric, group, points=points, shared_by=len(heads))
        # A trial without the metric has an empty part.
        new = {keys[trial_id]: b"" for trial_id in changed}
        for one in found:
            head = changed[one.trial_id]
            new[keys[one.trial_id]] = as_json(curve_of(head, _name(call, head), one, x, best))
        call.kept.keep(new)
        parts |= new
        series = [part for one in heads if (part := parts[keys[one.trial_id]])]
        return with_list({"metric": metric, "group": group, "x": x, "total_trials": total}, "series", series)

    return call.answer(heads, metric, total, best, versions, make=make)


def _name(call: Call, of: TrialHead) -> str:
    hparams = of.hparams if of.is_drawn else None
    task = (of.task_id, of.map_index)
    return of.display_name or call.names.of_json(call.store, of.config_id, of.number, hparams, task)


@router.get("/trials/{trial_id}/curves", **guarded(Rule.READ))
def trial_curves(
    call: CallDep,
    trial_id: int,
    metric: MetricFilter = None,
    group: MetricGroup | None = None,
    max_points: Points = 2000,
) -> TrialCurves:
    """Return metrics of a trial over batches, epochs and time."""
    (head,) = readable_trials(call.store, call.access, [trial_id])
    asked = list(dict.fromkeys(metric or []))
    groups = REPORTED if group is None else (group,)

    def make() -> TrialCurves:
        wanted = [MetricName(group=of, name=name) for name in asked for of in groups]
        if not asked:
            wanted = [one for one in call.store.curves.names([trial_id]) if one.group in groups][:METRICS_USUAL]
        found = call.store.curves.of_trial(trial_id, wanted, points=max_points)
        return TrialCurves(series=[metric_series(one) for one in found])

    return call.answer(head.state, call.store.curves.versions([trial_id]), make=make)


@router.get("/compare", **guarded(Rule.READ))
def compare(call: CallDep, trial: ComparedIds = None) -> Comparison:
    """Return trials beside each other, with the metrics that they have reported."""
    ids = list(dict.fromkeys(trial or []))
    if len(ids) < 2:
        raise UserError(f"trial must be given 2 to {COMPARED_MOST} times, got {len(ids)}.")
    trials = trials_by_id(call.store, call.access, ids)
    configs = {one.config_id: one for one in call.store.configs.some({one.config_id for one in trials})}
    return Comparison(
        trials=[_compared(one, configs[one.config_id]) for one in trials],
        metrics=shown_names(call.store.curves.names(ids)),
        has_epochs=call.store.curves.have_epochs(ids),
    )


def _compared(trial: TrialSummary, config: Config) -> ComparedTrial:
    return ComparedTrial(**vars(trial), metric=(config.document.get("searcher") or {}).get("metric"))
