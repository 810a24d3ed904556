"""Causes of failures: of a trial, and of the trials of an experiment."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.resources.failures import ExperimentFailures, TrialFailure
from airflow_provider_dtrain.store.queries.failures import experiment_failures, trial_failure
from airflow_provider_dtrain.store.queries.rights import readable_plan

router = APIRouter(route_class=StoreRoute, tags=["failures"], responses=ERRORS)


@router.get("/trials/{trial_id}/failure", **guarded(Rule.READ))
def of_trial(call: CallDep, trial_id: int) -> TrialFailure:
    """Return why a trial failed, what has changed since the last good run, and what to try.

    Errors and lines of logs are for users who may read task logs. A trial that has not failed has no such record.
    """
    return trial_failure(call.store, call.access, trial_id)


@router.get("/experiments/{experiment_id}/failures", **guarded(Rule.READ))
def of_experiment(call: CallDep, experiment_id: int) -> ExperimentFailures:
    """Return the failed trials of an experiment by cause. Numbers, paths and addresses may differ within a cause."""
    plan = readable_plan(call.store, call.access, experiment_id)
    version = ("failures", experiment_id, call.access.may_read_logs(plan.dag_id))
    return call.answer(
        *version,
        call.store.trial_table.version(experiment_id),
        make=lambda: experiment_failures(call.store, call.access, experiment_id),
    )
