"""The records that commands print, for ``dtrain`` and the Python client."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import AirflowId, Id, Name, TagFilter
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.listings import (
    CheckpointList,
    ExperimentList,
    OneExperiment,
    OneTrial,
    TrialList,
)
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.states import TrialState
from airflow_provider_dtrain.listings.source import StoreSource

router = APIRouter(prefix="/listings", route_class=StoreRoute, tags=["listings"], responses=ERRORS)

Most = Annotated[int, Query(ge=1, le=1000)]
Pool = Annotated[Name | None, Query(description="only this pool")]


def _source(call: Call) -> StoreSource:
    return StoreSource(call.store, call.access)


@router.get("/trials", **guarded(Rule.READ))
def trials(
    call: CallDep,
    experiment: Id | None = None,
    state: TrialState | None = None,
    tag: TagFilter = None,
    limit: Most = 50,
) -> TrialList:
    """Return trials, latest first."""
    return TrialList(rows=_source(call).trials(experiment=experiment, state=state, tags=tag or (), limit=limit))


@router.get("/trial", **guarded(Rule.READ))
def trial(call: CallDep, trial_id: Id) -> OneTrial:
    """Return a trial with its ranks and checkpoints. Errors of ranks need the right to read task logs."""
    return OneTrial(row=_source(call).trial(trial_id))


@router.get("/checkpoints", **guarded(Rule.READ))
def checkpoints(call: CallDep, trial_id: Id, removed: bool = False) -> CheckpointList:
    """Return a trial's checkpoints, oldest first."""
    return CheckpointList(rows=_source(call).checkpoints(trial_id, removed=removed))


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
