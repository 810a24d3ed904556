"""Charts: curves of trials, hyperparameters, and the comparison of trials."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute, tagged
from airflow_provider_dtrain.api.found import experiment_entry, trial_entries, trial_entry, units_in
from airflow_provider_dtrain.api.models.charts import Axis, ComparedTrial, Comparison, Curve, Curves, Difference
from airflow_provider_dtrain.api.models.common import MetricName
from airflow_provider_dtrain.api.models.trials import MetricSeries, TrialCurves
from airflow_provider_dtrain.api.rows import ERRORS, point
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.trial_rows import name_of, trial_fields
from airflow_provider_dtrain.core.config import mask
from airflow_provider_dtrain.core.config.differences import differences
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.records.curves import CurveOf, MetricKey
from airflow_provider_dtrain.store.records.pages import TrialChoice, TrialEntry
from airflow_provider_dtrain.store.records.trials import MetricGroup

router = APIRouter(route_class=StoreRoute, tags=["charts"], responses=ERRORS)

#: Trials of one chart, and trials beside each other.
TRIALS_MOST, COMPARED_MOST = 200, 8
#: Metrics of one trial in one answer, and those of an answer whose request names none.
METRICS_MOST, METRICS_USUAL = 100, 20
Points = Annotated[int, Query(ge=10, le=10_000, description="points per curve")]
Metric = Annotated[str, Query(min_length=1, max_length=1000)]
TrialIds = Annotated[list[int] | None, Query()]


@router.get("/experiments/{experiment_id}/curves", **guarded(Rule.READ))
def experiment_curves(
    call: CallDep,
    experiment_id: int,
    metric: Annotated[str | None, Query(max_length=1000, description="the searcher's without it")] = None,
    group: MetricGroup = "validation",
    x: Axis = "batches",
    select: Annotated[TrialChoice, Query()] = "best",
    limit: Annotated[int, Query(ge=1, le=TRIALS_MOST)] = 100,
    trial: TrialIds = None,
    max_points: Points = 2000,
) -> Curves:
    """Return a metric of an experiment's trials. Trials in the request come in addition to the selected ones."""
    view = experiment_entry(call, experiment_id).view
    name = metric or view.metric
    chosen, total = call.store.trial_table.chosen(experiment_id, select, limit)
    asked = [one.view.trial_id for one in trial_entries(call, (trial or [])[:TRIALS_MOST])]
    ids = list(dict.fromkeys([*asked, *chosen]))[:TRIALS_MOST]
    if name is None:
        return Curves(metric="", group=group, x=x, total_trials=total, series=[])
    return _curves(call, ids, name, group, x, max_points, total=total, best=view.best_trial)


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
    if not 1 <= len(ids) <= TRIALS_MOST:
        raise UserError(f"trial must be given 1 to {TRIALS_MOST} times, got {len(ids)}.")
    trial_entries(call, ids)
    return _curves(call, ids, metric, group, x, max_points, total=len(ids), best=None)


def _curves(
    call: Call,
    ids: list[int],
    metric: str,
    group: MetricGroup,
    x: Axis,
    points: int,
    *,
    total: int,
    best: int | None,
) -> Curves:
    tag = call.unless_known(ids, total, best, *call.store.curves.version(ids))
    found = call.store.curves.of_trials(ids, metric, group, points=points)
    entries = {one.view.trial_id: one for one in call.store.trial_table.some([one.trial_id for one in found])}
    series = [
        _curve(call, entries[one.trial_id], one, x, is_best=one.trial_id == best)
        for one in found
        if one.trial_id in entries
    ]
    answer = Curves(metric=metric, group=group, x=x, total_trials=total, series=series)
    return tagged(answer, tag)  # type: ignore[return-value]


def _curve(call: Call, entry: TrialEntry, of: CurveOf, x: Axis, *, is_best: bool) -> Curve:
    if x == "batches":
        axis: list[float | None] = [float(step) for step in of.steps]
    elif x == "epochs":
        axis = [point(epoch) for epoch in of.epochs]
    else:
        axis = [at - of.at_s[0] for at in of.at_s]
    kept = [(at, value) for at, value in zip(axis, of.values, strict=True) if at is not None]
    return Curve(
        trial_id=of.trial_id,
        number=entry.view.number,
        trial_name=entry.labels.display_name or name_of(call, entry),
        state=entry.view.state,
        is_best=is_best,
        x=[at for at, _ in kept],
        y=[point(value) for _, value in kept],
        sampled=of.is_sampled,
    )


@router.get("/trials/{trial_id}/curves", **guarded(Rule.READ))
def trial_curves(
    call: CallDep,
    trial_id: int,
    metric: Annotated[list[str] | None, Query(description="names; the first ones without it")] = None,
    group: MetricGroup | None = None,
    max_points: Points = 2000,
) -> TrialCurves:
    """Return metrics of a trial over batches, epochs and time."""
    trial_entry(call, trial_id)
    asked = list(dict.fromkeys(metric or []))
    if len(asked) > METRICS_MOST:
        raise UserError(f"metric must be given at most {METRICS_MOST} times, got {len(asked)}.")
    tag = call.unless_known(trial_id, *call.store.curves.version([trial_id]))
    groups: tuple[MetricGroup, ...] = ("validation", "training") if group is None else (group,)
    if asked:
        wanted = [MetricKey(group=of, name=name) for name in asked for of in groups]
    else:
        wanted = [one for one in call.store.curves.names([trial_id]) if one.group in groups][:METRICS_USUAL]
    found = call.store.curves.of_trial(trial_id, wanted, points=max_points)
    return tagged(TrialCurves(series=[_series(one) for one in found]), tag)  # type: ignore[return-value]


def _series(of: CurveOf) -> MetricSeries:
    return MetricSeries(
        group=of.group,
        name=of.name,
        batches=list(of.steps),
        epochs=[point(epoch) for epoch in of.epochs],
        at_s=list(of.at_s),
        y=[point(value) for value in of.values],
        attempt=list(of.attempts),
        sampled=of.is_sampled,
    )


@router.get("/compare", **guarded(Rule.READ))
def compare(call: CallDep, trial: TrialIds = None) -> Comparison:
    """Return trials beside each other, with the values in which their configurations differ."""
    ids = list(dict.fromkeys(trial or []))
    if not 2 <= len(ids) <= COMPARED_MOST:
        raise UserError(f"trial must be given 2 to {COMPARED_MOST} times, got {len(ids)}.")
    entries = trial_entries(call, ids)
    documents = [_document(call, one) for one in entries]
    found, same = differences(documents)
    return Comparison(
        trials=[_compared(call, one) for one in entries],
        metrics=[MetricName(group=one.group, name=one.name) for one in call.store.curves.names(ids)],
        differences=[Difference(path=path, values=values) for path, values in found],
        same=same,
    )


def _document(call: Call, entry: TrialEntry) -> dict[str, Any]:
    """Return the configuration of a trial with its own hyperparameters instead of their space."""
    document = mask(call.store.configs.get(entry.view.config_id).document)
    return {**document, "hyperparameters": dict(entry.view.hparams) if entry.view.is_drawn else {}}


def _compared(call: Call, entry: TrialEntry) -> ComparedTrial:
    view = entry.view
    units = units_in(call.store.configs.get(view.config_id))
    return ComparedTrial(
        **trial_fields(call, entry, units), experiment_id=view.experiment_id, experiment=view.experiment
    )
