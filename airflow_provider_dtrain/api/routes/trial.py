"""The page of one trial: its attempts, ranks, checkpoints, metrics, logs, configuration and timeline."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import AttemptNumber, Number, Offset
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.configs import shown_config
from airflow_provider_dtrain.api.downloads import checkpoint_download
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.checkpoints import DownloadableCheckpoint, DownloadableCheckpoints
from airflow_provider_dtrain.api.models.configs import ShownConfig
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.resources.logs import LogPiece
from airflow_provider_dtrain.resources.metrics import MetricGroup, MetricReports
from airflow_provider_dtrain.resources.provenance import TrialProvenance
from airflow_provider_dtrain.resources.ranks import AttemptRanks
from airflow_provider_dtrain.resources.timeline import TrialTimeline
from airflow_provider_dtrain.resources.trials import TrialDetail
from airflow_provider_dtrain.store.queries.checkpoints import with_records
from airflow_provider_dtrain.store.queries.logs import log_piece
from airflow_provider_dtrain.store.queries.metrics import reports_of
from airflow_provider_dtrain.store.queries.provenance import provenance_of
from airflow_provider_dtrain.store.queries.ranks import ranks_of
from airflow_provider_dtrain.store.queries.rights import readable_trial
from airflow_provider_dtrain.store.queries.timelines import timeline_of
from airflow_provider_dtrain.store.queries.trials import trial_detail

router = APIRouter(route_class=StoreRoute, tags=["trial"], responses=ERRORS)

#: Reports in one answer.
REPORTS_MOST = 5000


@router.get("/trials/{trial_id}", **guarded(Rule.READ))
def trial(call: CallDep, trial_id: int) -> TrialDetail:
    """Return a trial with its attempts."""
    return trial_detail(call.store, call.access, trial_id)


@router.get("/trials/{trial_id}/checkpoints", **guarded(Rule.READ))
def checkpoints(call: CallDep, trial_id: int) -> DownloadableCheckpoints:
    """Return all checkpoints of a trial, oldest first, with removed and refused ones."""
    trial = readable_trial(call.store, call.access, trial_id)
    return DownloadableCheckpoints(
        rows=[
            DownloadableCheckpoint(**vars(record), download=checkpoint_download(call, view, trial.experiment_id))
            for view, record in with_records(call.store, trial)
        ]
    )


@router.get("/trials/{trial_id}/ranks", **guarded(Rule.READ))
def ranks(
    call: CallDep,
    trial_id: int,
    attempt: AttemptNumber = None,
    logs: Annotated[bool, Query(description="with the ends of their logs; needs the right to read task logs")] = False,
) -> AttemptRanks:
    """Return the processes of an attempt with their exit codes. Errors are for users who may read task logs."""
    return ranks_of(call.store, call.access, trial_id, attempt=attempt, logs=logs)


@router.get("/trials/{trial_id}/provenance", **guarded(Rule.READ))
def provenance(call: CallDep, trial_id: int, attempt: AttemptNumber = None) -> TrialProvenance:
    """Return what a trial was made of. Files are for users who may read the code of its DAG."""
    return provenance_of(call.store, call.access, trial_id, attempt=attempt)


@router.get("/trials/{trial_id}/timeline", **guarded(Rule.READ))
def timeline(call: CallDep, trial_id: int) -> TrialTimeline:
    """Return everything that happened to a trial, oldest first."""
    return timeline_of(call.store, call.access, trial_id)


@router.get("/trials/{trial_id}/metrics", **guarded(Rule.READ))
def metrics(
    call: CallDep,
    trial_id: int,
    group: MetricGroup | None = None,
    abandoned: Annotated[bool, Query(description="also steps that a later attempt repeated")] = False,
    offset: Offset = 0,
) -> MetricReports:
    """Return a page of the reports of a trial, by step."""
    return reports_of(
        call.store, call.access, trial_id, group=group, abandoned=abandoned, offset=offset, most=REPORTS_MOST
    )


@router.get("/trials/{trial_id}/log", **guarded(Rule.READ_LOGS))
def log(
    call: CallDep,
    trial_id: int,
    rank: Number = 0,
    attempt: AttemptNumber = None,
    offset: Annotated[Offset, Query(description="first byte that the client does not have")] = 0,
) -> LogPiece:
    """Return the bytes of a rank's log behind an offset. The store has at most the last 64 KiB."""
    return log_piece(call.store, call.access, trial_id, attempt=attempt, rank=rank, offset=offset)


@router.get("/trials/{trial_id}/config", **guarded(Rule.READ))
def config(call: CallDep, trial_id: int) -> ShownConfig:
    """Return the effective configuration of a trial with the origin of each value. Secrets are masked."""
    found = call.store.configs.get(readable_trial(call.store, call.access, trial_id).config_id)
    return call.answer(found.digest, make=lambda: shown_config(found))
