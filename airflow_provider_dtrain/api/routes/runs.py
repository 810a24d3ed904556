"""The table of runs: trials of all experiments, their groups, and saved views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import Response

from airflow_provider_dtrain.api.bounds import Offset, Where
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.runs import RunViewBody, Written
from airflow_provider_dtrain.api.rows import ERRORS, Order
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.tables import ROWS_MOST, csv_answer
from airflow_provider_dtrain.resources.runs import RunChart, RunGroupPage, RunNames, RunPage, RunView, RunViewPage
from airflow_provider_dtrain.store.queries.rights import ID_MOST
from airflow_provider_dtrain.store.queries.runs import (
    COLUMNS_MOST,
    GROUPED_MOST,
    RunSelection,
    check_view,
    group_page,
    run_names,
    run_page,
    run_view,
)

router = APIRouter(route_class=StoreRoute, tags=["runs"], responses=ERRORS)

_Columns = Annotated[list[Written] | None, Query(max_length=COLUMNS_MOST, description="names, as in expressions")]
_By = Annotated[list[Written], Query(min_length=1, max_length=GROUPED_MOST, description="names, or params for all")]
_ByOrNone = Annotated[list[Written] | None, Query(max_length=GROUPED_MOST, description="groups instead of trials")]
_Replaced = Annotated[bool, Query(description="also trials of cleared tasks and older plans")]
_Sort = Annotated[
    Written, Query(description="a name, of groups also mean:NAME, std:NAME, min:NAME or max:NAME; empty: the default")
]
_Limit = Annotated[int, Query(ge=1, le=1000)]
_ViewInPath = Annotated[int, Path(ge=1, le=ID_MOST)]
_MEASURES = ("mean", "std", "min", "max", "count")


def _selection(
    where: Where = "",
    column: _Columns = None,
    sort: _Sort = "",
    order: Order = "desc",
    replaced: _Replaced = False,
) -> RunSelection:
    return RunSelection(
        where=where, columns=column or (), sort=sort, descending=order == "desc", with_replaced=replaced
    )


_Selection = Annotated[RunSelection, Depends(_selection)]


@router.get("/runs", **guarded(Rule.READ))
def runs(call: CallDep, selected: _Selection, limit: _Limit = 100, offset: Offset = 0) -> RunPage:
    """Return one page of the trials of all experiments that match a filter, with the values of columns."""
    return run_page(call.store, call.access, selected, limit=limit, offset=offset)


@router.get("/runs/groups", **guarded(Rule.READ))
def run_groups(call: CallDep, selected: _Selection, by: _By, limit: _Limit = 100, offset: Offset = 0) -> RunGroupPage:
    """Return one page of groups of trials with equal values, and figures of the columns over each group."""
    return group_page(call.store, call.access, selected, by=by, limit=limit, offset=offset)


@router.get("/runs.csv", response_model=None, **guarded(Rule.READ))
def runs_csv(call: CallDep, selected: _Selection, by: _ByOrNone = None) -> Response:
    """Return all matching trials as CSV, or their groups."""
    if by:
        groups = group_page(call.store, call.access, selected, by=by, limit=ROWS_MOST)
        names = [*groups.by, "trials", *(f"{one} {measure}" for one in groups.columns for measure in _MEASURES)]
        figures = ([getattr(f, m) for f in row.figures for m in _MEASURES] for row in groups.rows)
        rows: list[Sequence[Any]] = [
            [*row.keys, row.trials, *own] for row, own in zip(groups.rows, figures, strict=True)
        ]
        return csv_answer("groups.csv", names, rows)
    page = run_page(call.store, call.access, selected, limit=ROWS_MOST)
    fixed = ("trial_id", "name", "number", "experiment_id", "experiment", "state")
    rows = [[*(getattr(one, name) for name in fixed), *one.values] for one in page.rows]
    return csv_answer("runs.csv", [*fixed, *page.columns], rows)


@router.get("/runs/names", **guarded(Rule.READ))
def names(call: CallDep) -> RunNames:
    """Return the names that filter expressions and columns may have."""
    return run_names(call.store, call.access)


@router.get("/runs/views", **guarded(Rule.READ))
def views(call: CallDep) -> RunViewPage:
    """Return the saved views of the user, and those that other users share."""
    user_id = call.access.user_id
    return RunViewPage(rows=[run_view(one, user_id) for one in call.store.run_views.visible(user_id)])


@router.post("/runs/views", status_code=201, **guarded(Rule.OWN_VIEWS))
def add_view(call: CallDep, body: RunViewBody) -> RunView:
    """Save a view of the user."""
    return _saved(call, body, None)


@router.put("/runs/views/{view_id}", **guarded(Rule.OWN_VIEWS))
def set_view(call: CallDep, view_id: _ViewInPath, body: RunViewBody) -> RunView:
    """Replace a view of the user."""
    return _saved(call, body, view_id)


@router.delete("/runs/views/{view_id}", status_code=204, response_model=None, **guarded(Rule.OWN_VIEWS))
def remove_view(call: CallDep, view_id: _ViewInPath) -> Response:
    """Remove a view of the user."""
    call.store.run_views.remove(call.access.user_id, call.access.name, view_id)
    return Response(status_code=204)


def _saved(call: Call, body: RunViewBody, view_id: int | None) -> RunView:
    definition = body.model_dump(exclude={"name", "is_shared"})
    charts = [RunChart(kind=one.kind, y=one.y, x=one.x) for one in body.charts]
    check_view(body.where, body.columns, body.by, body.sort, charts)
    access = call.access
    view = call.store.run_views.save(
        access.user_id, access.name, body.name, definition, is_shared=body.is_shared, view_id=view_id
    )
    return run_view(view, access.user_id)
