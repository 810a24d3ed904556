"""First results of a trial that is a batch inference."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.resources.results import ResultPreview
from airflow_provider_dtrain.store.queries.results import result_preview

router = APIRouter(route_class=StoreRoute, tags=["trial"], responses=ERRORS)


@router.get("/trials/{trial_id}/results", response_model=ResultPreview, **guarded(Rule.READ_LOGS))
def results(call: CallDep, trial_id: int) -> Any:
    """Return the first rows of the results of a batch inference, as short texts."""
    return result_preview(call.store, call.access, trial_id)
