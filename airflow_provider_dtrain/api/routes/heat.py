"""The heat map of the cluster."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import HostFilter
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.resources.heat import Heat, HeatMetric
from airflow_provider_dtrain.store.queries.heat import heat_of

router = APIRouter(route_class=StoreRoute, tags=["cluster"], responses=ERRORS)


@router.get("/cluster/heat", **guarded(Rule.READ))
def heat(call: CallDep, metric: Annotated[HeatMetric, Query()] = HeatMetric.LOAD, host: HostFilter = None) -> Heat:
    """Return the latest minute of a metric for each slot of the named hosts."""
    return heat_of(call.store, list(dict.fromkeys(host or [])), metric)
