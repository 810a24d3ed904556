"""Use of the cluster by day."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import Name
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.resources.usage import Usage, UsageBy
from airflow_provider_dtrain.store.queries.usage import DAYS_MOST, usage_of

router = APIRouter(route_class=StoreRoute, tags=["cluster"], responses=ERRORS)


@router.get("/cluster/usage", **guarded(Rule.READ))
def usage(
    call: CallDep,
    by: Annotated[UsageBy, Query()] = UsageBy.POOL,
    days: Annotated[int, Query(ge=1, le=DAYS_MOST, description="with today")] = 14,
    pool: Name | None = None,
) -> Usage:
    """Return slot hours by day. DAGs that the user may not read, and their users, are counted without names."""
    return usage_of(call.store, call.access, by=by, days=days, pool=pool)
