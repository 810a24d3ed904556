"""The table of trials."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query
from fastapi.responses import Response

from airflow_provider_dtrain.api.bounds import Id, Offset, StateFilter, TagFilter, Where
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.rows import ERRORS, Order, Search
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.tables import ROWS_MOST, csv_answer
from airflow_provider_dtrain.core.search.dimensions import dimensions, value_at
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.resources.trials import TrialPage
from airflow_provider_dtrain.store.queries.experiments import plan_config
from airflow_provider_dtrain.store.queries.rights import readable_plan
from airflow_provider_dtrain.store.queries.runs import condition
from airflow_provider_dtrain.store.queries.trials import trial_page
from airflow_provider_dtrain.store.records.pages import TrialOrder, TrialQuery
from airflow_provider_dtrain.store.records.trials import Config

router = APIRouter(route_class=StoreRoute, tags=["trials"], responses=ERRORS)

#: Prefix of an order by a hyperparameter.
HPARAMS = "hparams."
_ORDERS: tuple[TrialOrder, ...] = get_args(TrialOrder)


@router.get("/trials", **guarded(Rule.READ))
def trials(
    call: CallDep,
    experiment_id: Annotated[Id | None, Query(description="only those of this experiment")] = None,
    q: Search = "",
    state: StateFilter = None,
    tag: TagFilter = None,
    where: Where = "",
    replaced: Annotated[bool, Query(description="also trials of cleared tasks and older plans")] = False,
    sort: Annotated[str, Query(max_length=500, description="a column, or hparams.<name>")] = "number",
    order: Order = "asc",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Offset = 0,
) -> TrialPage:
    """Return one page of the trials of an experiment, or of all trials."""
    config = None
    if experiment_id is not None and sort.startswith(HPARAMS):
        config = plan_config(call.store, readable_plan(call.store, call.access, experiment_id))
    query = TrialQuery(
        experiment_id=experiment_id,
        text=q,
        states=tuple(state or ()),
        tags=tuple(tag or ()),
        where=condition(where),
        with_replaced=replaced,
        **ordered_by(sort, config),
        descending=order == "desc",
        limit=limit,
        offset=offset,
    )
    return trial_page(call.store, call.access, query)


@router.get("/experiments/{experiment_id}/trials.csv", response_model=None, **guarded(Rule.READ))
def trials_csv(
    call: CallDep,
    experiment_id: int,
    q: Search = "",
    state: StateFilter = None,
    tag: TagFilter = None,
    where: Where = "",
    replaced: Annotated[bool, Query(description="also trials of cleared tasks and older plans")] = False,
    sort: Annotated[str, Query(max_length=500, description="a column, or hparams.<name>")] = "number",
    order: Order = "asc",
) -> Response:
    """Return all matching trials of an experiment as CSV, with a column per hyperparameter."""
    plan = readable_plan(call.store, call.access, experiment_id)
    config = plan_config(call.store, plan)
    query = TrialQuery(
        experiment_id=experiment_id,
        text=q,
        states=tuple(state or ()),
        tags=tuple(tag or ()),
        where=condition(where),
        with_replaced=replaced,
        **ordered_by(sort, config),
        descending=order == "desc",
        limit=ROWS_MOST,
    )
    found = call.store.trial_table.figures(query)
    space = [one for one in dimensions(_space(config)) if one.kind != "const"]
    names = ("trial_id", "number", "state", "metric", "best_step", "units", "restarts", "created_at", "ended_at")
    columns = [*names[:3], plan.metric or "metric", *names[4:], *(one.name for one in space)]
    rows = (
        [*(getattr(one, name) for name in names), *(value_at(one.hparams, column.path) for column in space)]
        for one in found
    )
    return csv_answer(f"experiment-{experiment_id}-trials.csv", columns, rows)


def _space(config: Config | None) -> Any:
    return None if config is None else config.document.get("hyperparameters")


def ordered_by(sort: str, config: Config | None) -> dict[str, Any]:
    """Return the fields of a query that order the trials.

    :raises UserError: there is no such column or hyperparameter
    """
    if sort in _ORDERS:
        return {"sort": sort}
    name = sort.removeprefix(HPARAMS)
    if name == sort or not name:
        raise UserError(f"sort must be one of {', '.join(_ORDERS)} or {HPARAMS}NAME, got {sort[:100]!r}.")
    known = {one.name: one.path for one in dimensions(_space(config))}
    return {"hparam": known.get(name, tuple(name.split(".")))}
