"""The queue."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import Name, Offset
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.rows import ERRORS, Order, Search
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.states import AllocationState
from airflow_provider_dtrain.resources.gangs import GangPage
from airflow_provider_dtrain.store.queries.gangs import gang_page
from airflow_provider_dtrain.store.records.pages import QueueOrder, QueueQuery

router = APIRouter(route_class=StoreRoute, tags=["queue"], responses=ERRORS)


@router.get("/queue", response_model=GangPage, **guarded(Rule.READ))
def queue(
    call: CallDep,
    pool: Name | None = None,
    state: AllocationState | None = None,
    q: Search = "",
    sort: Annotated[QueueOrder, Query()] = "position",
    order: Order = "asc",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Offset = 0,
) -> Any:
    """Return one page of the gangs that wait or hold slots, the running ones first."""
    query = QueueQuery(
        pool=pool, state=state, text=q, sort=sort, descending=order == "desc", limit=limit, offset=offset
    )
    return call.page(call.store.queue_view.version(), lambda: gang_page(call.store, call.access, query))
