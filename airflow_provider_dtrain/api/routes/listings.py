"""The records that commands print, for ``dtrain`` and the Python client."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import AirflowId, AttemptNumber, Id, Name, Number, Offset, TagFilter
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.listings import (
    CheckpointList,
    ExperimentList,
    GangList,
    HostList,
    MetricList,
    OneExperiment,
    OneLogPiece,
    OneTrial,
    SlotList,
    TrialList,
)
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.states import TrialState
from airflow_provider_dtrain.listings.logs import log_piece
from airflow_provider_dtrain.listings.source import StoreSource
from airflow_provider_dtrain.store.records.trials import MetricGroup

router = APIRouter(prefix="/listings", route_class=StoreRoute, tags=["listings"], responses=ERRORS)

#: Reports in one answer.
METRICS_MOST = 5000
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


@router.get("/metrics", **guarded(Rule.READ))
def metrics(
    call: CallDep,
    trial_id: Id,
    group: MetricGroup | None = None,
    abandoned: Annotated[bool, Query(description="also steps that a later attempt repeated")] = False,
    offset: Offset = 0,
) -> MetricList:
    """Return a page of the reports of a trial, by step."""
    # One more tells whether there is another page.
    most = METRICS_MOST + 1
    rows = _source(call).metrics(trial_id, group=group, abandoned=abandoned, offset=offset, limit=most)
    following = offset + METRICS_MOST if len(rows) == most else None
    return MetricList(rows=rows[:METRICS_MOST], next_offset=following)


@router.get("/log", **guarded(Rule.READ_LOGS))
def log(
    call: CallDep,
    trial_id: Id,
    rank: Number = 0,
    attempt: AttemptNumber = None,
    offset: Annotated[Offset, Query(description="first byte that the client does not have")] = 0,
) -> OneLogPiece:
    """Return the bytes of a rank's log behind an offset. The store has at most the last 64 KiB."""
    trial = call.store.trials.get(trial_id)
    call.access.require_read(trial.key.dag_id, f"There is no trial {trial_id}. See: airflow dtrain trials list")
    call.access.require_logs(trial.key.dag_id)
    return OneLogPiece(row=log_piece(call.store, trial, attempt=attempt, rank=rank, offset=offset))


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


@router.get("/queue", **guarded(Rule.READ))
def queue(call: CallDep, pool: Pool = None) -> GangList:
    """Return waiting and running gangs, the running ones first."""
    return GangList(rows=_source(call).gangs(pool))


@router.get("/hosts", **guarded(Rule.READ))
def hosts(call: CallDep, pool: Pool = None) -> HostList:
    """Return hosts. Their connections are for users who may edit connections."""
    return HostList(rows=_source(call).hosts(pool))


@router.get("/slots", **guarded(Rule.READ))
def slots(call: CallDep, pool: Pool = None) -> SlotList:
    """Return slots with the trials that hold them."""
    return SlotList(rows=_source(call).slots(pool))
