"""The table of experiments."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from airflow_provider_dtrain.api.bounds import AirflowId, Offset, TagFilter
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.experiment_rows import experiment_fields, experiment_row
from airflow_provider_dtrain.api.models.experiments import ExperimentRow, Experiments
from airflow_provider_dtrain.api.rows import ERRORS, Limit, Order, Search
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.tables import ROWS_MOST, csv_answer
from airflow_provider_dtrain.core.lifecycle.states import ExperimentState
from airflow_provider_dtrain.store.records.pages import ExperimentOrder, ExperimentQuery

router = APIRouter(route_class=StoreRoute, tags=["experiments"], responses=ERRORS)


SortBy = Annotated[ExperimentOrder, Query()]


@router.get("/experiments", response_model=Experiments, **guarded(Rule.READ))
def experiments(
    call: CallDep,
    q: Search = "",
    state: ExperimentState | None = None,
    dag_id: AirflowId | None = None,
    tag: TagFilter = None,
    sort: SortBy = "created_at",
    order: Order = "desc",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Any:
    """Return one page of experiments."""
    query = ExperimentQuery(
        text=q,
        state=state,
        dag_id=dag_id,
        tags=tuple(tag or ()),
        dags=call.dags,
        sort=sort,
        descending=order == "desc",
        limit=limit,
        offset=offset,
    )
    return call.page(call.store.experiment_table.version(), lambda: _experiments(call, query))


def _experiments(call: Call, query: ExperimentQuery) -> Experiments:
    entries, total = call.store.experiment_table.page(query)
    editable = call.access.may_edit({one.view.dag_id for one in entries})
    return Experiments(
        rows=[experiment_row(one, may_edit=one.view.dag_id in editable) for one in entries],
        total=total,
        tags=call.store.labels.tags_in_use(call.dags),
    )


@router.get("/experiments.csv", response_model=None, **guarded(Rule.READ))
def experiments_csv(
    call: CallDep,
    q: Search = "",
    state: ExperimentState | None = None,
    dag_id: AirflowId | None = None,
    tag: TagFilter = None,
    sort: SortBy = "created_at",
    order: Order = "desc",
) -> Response:
    """Return all matching experiments as CSV."""
    query = ExperimentQuery(
        text=q,
        state=state,
        dag_id=dag_id,
        tags=tuple(tag or ()),
        dags=call.dags,
        sort=sort,
        descending=order == "desc",
        limit=ROWS_MOST,
    )
    entries, _ = call.store.experiment_table.page(query)
    rows = [experiment_fields(one, may_edit=False) for one in entries]
    columns = [name for name in ExperimentRow.model_fields if name != "may_edit"]
    return csv_answer("experiments.csv", columns, ([row[name] for name in columns] for row in rows))
