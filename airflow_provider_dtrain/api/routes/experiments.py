"""The table of experiments."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from airflow_provider_dtrain.api import bounds
from airflow_provider_dtrain.api.bounds import AirflowId, Offset, TagFilter
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.rows import ERRORS, Order, Search
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.tables import ROWS_MOST, csv_answer
from airflow_provider_dtrain.core.lifecycle.control import Archived
from airflow_provider_dtrain.core.lifecycle.states import ExperimentState
from airflow_provider_dtrain.resources.experiments import ExperimentPage, ExperimentSummary
from airflow_provider_dtrain.store.queries.experiments import experiment_page
from airflow_provider_dtrain.store.records.pages import ExperimentOrder, ExperimentQuery

router = APIRouter(route_class=StoreRoute, tags=["experiments"], responses=ERRORS)


SortBy = Annotated[ExperimentOrder, Query()]
NeverFits = Annotated[bool, Query(description="only those of which no request can be served by the pool's hosts")]
Mine = Annotated[bool, Query(description="only those of the user of the request, whatever owner says")]


@router.get("/experiments", response_model=ExperimentPage, **guarded(Rule.READ))
def experiments(
    call: CallDep,
    q: Search = "",
    name: Annotated[Search, Query(description="part of the name alone")] = "",
    state: ExperimentState | None = None,
    never_fits: NeverFits = False,
    dag_id: AirflowId | None = None,
    run_id: AirflowId | None = None,
    tag: TagFilter = None,
    owner: bounds.OwnerFilter = None,
    mine: Mine = False,
    project: bounds.ProjectFilter = None,
    archived: Archived = "no",
    sort: SortBy = "created_at",
    order: Order = "desc",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Offset = 0,
) -> Any:
    """Return one page of experiments."""
    query = ExperimentQuery(
        text=q,
        name=name,
        state=state,
        never_fits=never_fits,
        dag_id=dag_id,
        run_id=run_id,
        tags=tuple(tag or ()),
        owner=call.access.name if mine else owner,
        project=project,
        archived=archived,
        sort=sort,
        descending=order == "desc",
        limit=limit,
        offset=offset,
    )
    return call.page(call.store.experiment_table.version(), lambda: experiment_page(call.store, call.access, query))


@router.get("/experiments.csv", response_model=None, **guarded(Rule.READ))
def experiments_csv(
    call: CallDep,
    q: Search = "",
    state: ExperimentState | None = None,
    never_fits: NeverFits = False,
    dag_id: AirflowId | None = None,
    tag: TagFilter = None,
    owner: bounds.OwnerFilter = None,
    mine: Mine = False,
    project: bounds.ProjectFilter = None,
    archived: Archived = "no",
    sort: SortBy = "created_at",
    order: Order = "desc",
) -> Response:
    """Return all matching experiments as CSV."""
    query = ExperimentQuery(
        text=q,
        state=state,
        never_fits=never_fits,
        dag_id=dag_id,
        tags=tuple(tag or ()),
        owner=call.access.name if mine else owner,
        project=project,
        archived=archived,
        sort=sort,
        descending=order == "desc",
        limit=ROWS_MOST,
    )
    rows = experiment_page(call.store, call.access, query).rows
    columns = [one.name for one in fields(ExperimentSummary) if one.name != "may_edit"]
    return csv_answer("experiments.csv", columns, ([getattr(row, name) for name in columns] for row in rows))
