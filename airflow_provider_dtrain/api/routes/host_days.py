"""A day of hosts."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import DayHosts
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.resources.host_days import HostDays
from airflow_provider_dtrain.store.queries.host_days import host_days

router = APIRouter(route_class=StoreRoute, tags=["cluster"], responses=ERRORS)


@router.get("/cluster/day", **guarded(Rule.READ))
def day_of_hosts(
    call: CallDep,
    host: DayHosts,
    day: Annotated[date | None, Query(description="in UTC; the last 24 hours without it")] = None,
) -> HostDays:
    """Return what hosts did on a day: work on their slots, states, checks. Work of other DAGs has no names."""
    return host_days(call.store, call.access, host, day=day)
