"""Differences between trials, and between experiments."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_provider_dtrain.api.bounds import COMPARED_MOST, ComparedIds
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.resources.provenance import Differences
from airflow_provider_dtrain.store.queries.differences import experiment_differences, trial_differences

router = APIRouter(route_class=StoreRoute, tags=["charts"], responses=ERRORS)


@router.get("/differences/trials", **guarded(Rule.READ))
def of_trials(call: CallDep, trial: ComparedIds = None) -> Differences:
    """Return in what 2 to 8 trials differ: configuration, code, packages, devices. What is not known is named."""
    return trial_differences(call.store, call.access, _several("trial", trial))


@router.get("/differences/experiments", **guarded(Rule.READ))
def of_experiments(call: CallDep, experiment: ComparedIds = None) -> Differences:
    """Return in what 2 to 8 experiments differ, as for trials."""
    return experiment_differences(call.store, call.access, _several("experiment", experiment))


def _several(name: str, ids: list[int] | None) -> list[int]:
    found = list(dict.fromkeys(ids or []))
    if len(found) < 2:
        raise UserError(f"{name} must be given 2 to {COMPARED_MOST} times with different ids, got {len(found)}.")
    return found
