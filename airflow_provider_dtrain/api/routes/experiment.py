"""The page of one experiment: its plan, rungs and configuration."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.configs import shown_config
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.forks import fork_of
from airflow_provider_dtrain.api.models.charts import Rungs
from airflow_provider_dtrain.api.models.configs import ShownConfig
from airflow_provider_dtrain.api.models.experiments import ForkableExperiment
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.rung_rows import rungs_of
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.queries.experiments import experiment_detail, plan_config, units_in
from airflow_provider_dtrain.store.queries.rights import readable_plan

router = APIRouter(route_class=StoreRoute, tags=["experiment"], responses=ERRORS)


@router.get("/experiments/{experiment_id}", **guarded(Rule.READ))
def experiment(call: CallDep, experiment_id: int) -> ForkableExperiment:
    """Return an experiment with its plan."""
    found = experiment_detail(call.store, call.access, experiment_id)
    return ForkableExperiment(**vars(found), fork=fork_of(call, found))


@router.get("/experiments/{experiment_id}/rungs", **guarded(Rule.READ))
def rungs(
    call: CallDep,
    experiment_id: int,
    limit: Annotated[int, Query(ge=10, le=10_000, description="reports per rung")] = 500,
) -> Rungs:
    """Return which trial was stopped where, against which others, and by how much."""
    plan = readable_plan(call.store, call.access, experiment_id)
    search_id, smaller = plan.search_id, plan.smaller_is_better
    units = units_in(plan_config(call.store, plan))
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
    found = plan_config(call.store, readable_plan(call.store, call.access, experiment_id))
    if found is None:
        raise NotFoundError(f"Experiment {experiment_id} has no trial and no plan, so it has no configuration yet.")
    return call.answer(found.digest, make=lambda: shown_config(found))
