"""The page of one experiment: its plan, rungs and configuration."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.configs import shown_config
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.experiment_rows import experiment_fields
from airflow_provider_dtrain.api.forks import fork_of
from airflow_provider_dtrain.api.found import config_of, experiment_entry, experiment_plan, plan_config, units_in
from airflow_provider_dtrain.api.models.charts import Rungs
from airflow_provider_dtrain.api.models.configs import ShownConfig
from airflow_provider_dtrain.api.models.experiments import Experiment, Hyperparameter, Search
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.rung_rows import rungs_of
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.search.dimensions import dimensions
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.checkpoints import StoredCheckpoint
from airflow_provider_dtrain.store.queries.checkpoints import best_of
from airflow_provider_dtrain.store.queries.metric_names import shown_names
from airflow_provider_dtrain.store.records.pages import ExperimentEntry
from airflow_provider_dtrain.store.records.trials import Config

router = APIRouter(route_class=StoreRoute, tags=["experiment"], responses=ERRORS)

#: Trials from which the names of an experiment's metrics come.
NAMES_FROM = 5


@router.get("/experiments/{experiment_id}", **guarded(Rule.READ))
def experiment(call: CallDep, experiment_id: int) -> Experiment:
    """Return an experiment with its plan."""
    entry = experiment_entry(call, experiment_id)
    config = config_of(call, entry)
    document = {} if config is None else config.document
    view = entry.view
    may_edit = bool(call.access.may_edit({view.dag_id}))
    chosen, _ = call.store.trial_table.chosen(experiment_id, "latest", NAMES_FROM)
    shown = [view.best_trial, *chosen] if view.best_trial is not None else chosen
    return Experiment(
        **experiment_fields(entry, may_edit=may_edit),
        config_id=None if config is None else config.config_id,
        search=_search(call, entry, config),
        best_checkpoint=_best_checkpoint(call, entry),
        weight=view.weight,
        max_slots=view.max_slots,
        requested_by=view.requested_by,
        metrics=shown_names(call.store.curves.names(shown)),
        has_epochs=call.store.curves.have_epochs(shown),
        config_description=str(document.get("description") or ""),
        config_labels=[str(label) for label in document.get("labels") or ()],
        hyperparameters=_hyperparameters(config),
        fork=fork_of(call, entry, config),
    )


def _search(call: Call, entry: ExperimentEntry, config: Config | None) -> Search | None:
    if entry.view.search_id is None:
        return None
    found = call.store.searches.get(entry.view.search_id)
    searcher = (config.document.get("searcher") if config is not None else None) or {}
    return Search(
        search_id=found.search_id,
        generation=found.generation,
        divisor=found.divisor,
        seed=found.seed,
        units=units_in(config),
        rungs={str(bracket): list(lengths) for bracket, lengths in found.rungs.items()},
        max_concurrent_trials=found.max_concurrent_trials,
        sampler=str(searcher.get("sampler") or found.method),
    )


def _best_checkpoint(call: Call, entry: ExperimentEntry) -> StoredCheckpoint | None:
    view = entry.view
    if view.best_trial is None:
        return None
    return best_of(call.store, view.best_trial, view.metric, smaller_is_better=view.smaller_is_better)


def _hyperparameters(config: Config | None) -> list[Hyperparameter]:
    return [
        Hyperparameter(
            name=one.name,
            kind=one.kind,
            log=one.is_log,
            minimum=one.minimum,
            maximum=one.maximum,
            values=None if one.values is None else list(one.values),
        )
        for one in dimensions(_space(config))
    ]


def _space(config: Config | None) -> Any:
    return None if config is None else config.document.get("hyperparameters")


@router.get("/experiments/{experiment_id}/rungs", **guarded(Rule.READ))
def rungs(
    call: CallDep,
    experiment_id: int,
    limit: Annotated[int, Query(ge=10, le=10_000, description="reports per rung")] = 500,
) -> Rungs:
    """Return which trial was stopped where, against which others, and by how much."""
    plan = experiment_plan(call, experiment_id)
    search_id, smaller = plan.search_id, plan.smaller_is_better
    units = units_in(plan_config(call, plan))
    if search_id is None:
        none = Rungs(metric=plan.metric, smaller_is_better=smaller, divisor=0, units=units, brackets=[])
        return call.answer(plan, make=lambda: none)

    def make() -> Rungs:
        found = call.store.rung_page.rungs(search_id, most=limit)
        divisor = call.store.searches.get(search_id).divisor
        return rungs_of(found, metric=plan.metric, smaller_is_better=smaller, divisor=divisor, units=units)

    return call.answer(plan, call.store.rung_page.version(search_id), make=make)


@router.get("/experiments/{experiment_id}/config", **guarded(Rule.READ))
def config(call: CallDep, experiment_id: int) -> ShownConfig:
    """Return the effective configuration of an experiment with the origin of each value. Secrets are masked."""
    found = plan_config(call, experiment_plan(call, experiment_id))
    if found is None:
        raise NotFoundError(f"Experiment {experiment_id} has no trial and no plan, so it has no configuration yet.")
    return call.answer(found.digest, make=lambda: shown_config(found))
