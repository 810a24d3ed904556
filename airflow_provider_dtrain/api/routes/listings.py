"""The records that commands print, for ``dtrain`` and the Python client."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import AirflowId, Id, Name, TagFilter
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.listings import (
    ExperimentList,
    OneExperiment,
)
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.listings.source import StoreSource

router = APIRouter(prefix="/listings", route_class=StoreRoute, tags=["listings"], responses=ERRORS)

Most = Annotated[int, Query(ge=1, le=1000)]
Pool = Annotated[Name | None, Query(description="only this pool")]


def _source(call: Call) -> StoreSource:
    return StoreSource(call.store, call.access)


@router.get("/experiments", **guarded(Rule.READ))
def experiments(
    call: CallDep,
    name: Annotated[str, Query(max_length=200)] = "",
    dag_run: Annotated[AirflowId, Query(description="only those of DAG runs with this in their id")] = "",
    tag: TagFilter = None,
    limit: Most = 50,
) -> ExperimentList:
    """Return experiments, latest first."""
    return ExperimentList(rows=_source(call).experiments(name=name, tags=tag or (), limit=limit, dag_run=dag_run))


@router.get("/experiment", **guarded(Rule.READ))
def experiment(call: CallDep, experiment_id: Id) -> OneExperiment:
    """Return an experiment with its share of the queue."""
    return OneExperiment(row=_source(call).experiment(experiment_id))
