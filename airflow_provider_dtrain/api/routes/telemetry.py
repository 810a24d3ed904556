"""Telemetry: system metrics, timings and step times of a trial, and the utilization of hosts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import AttemptNumber, HostFilter, MetricFilter
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.cluster import DeviceUtilization, HostUtilization, Utilization
from airflow_provider_dtrain.api.models.trials import (
    RankPlace,
    StepTimes,
    Telemetry,
    TimingPart,
    Timings,
)
from airflow_provider_dtrain.api.rows import ERRORS, point
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.telemetry_rows import series_of
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.resources.telemetry import Profile
from airflow_provider_dtrain.store.queries.profiles import profile_of, slow_ranks_of
from airflow_provider_dtrain.store.queries.ranks import attempt_of
from airflow_provider_dtrain.store.queries.trials import readable_trials
from airflow_provider_dtrain.store.records import telemetry as records

router = APIRouter(route_class=StoreRoute, tags=["telemetry"], responses=ERRORS)

Buckets = Annotated[int, Query(ge=10, le=2000, description="most intervals")]


@router.get("/cluster/utilization", **guarded(Rule.READ))
def utilization(
    call: CallDep,
    host: HostFilter = None,
    span_s: Annotated[float, Query(ge=60, le=7200)] = 3600,
    points: Annotated[int, Query(ge=1, le=120)] = 60,
) -> Utilization:
    """Return the utilization of hosts and their GPUs over the last hours."""
    hosts = list(dict.fromkeys(host or []))
    store = call.store
    lines = store.telemetry.sparklines(hosts, store.db.now() - timedelta(seconds=span_s), points)
    slots = store.cluster_page.devices({line.host for line in lines})
    of_host: dict[str, list[records.Sparkline]] = {}
    for line in lines:
        of_host.setdefault(line.host, []).append(line)
    return Utilization(
        at_s=_times(lines), hosts=[_host(name, of_host[name], slots) for name in hosts if name in of_host]
    )


def _times(lines: list[records.Sparkline]) -> list[float]:
    """Return the common times of sparklines: all of one answer have the same."""
    if not lines:
        return []
    start = lines[0].start.timestamp()
    return [start + index * lines[0].step_s for index in range(len(lines[0].mean))]


def _host(name: str, lines: list[records.Sparkline], slots: dict[tuple[str, str], int]) -> HostUtilization:
    """Return the utilization of a host: the mean over its GPUs, without GPUs that of its CPUs."""
    gpus = [line for line in lines if line.device]
    shown = gpus or lines
    return HostUtilization(
        name=name,
        metric=shown[0].metric,
        mean=[_mean([line.mean[index] for line in shown]) for index in range(len(shown[0].mean))],
        devices=[
            DeviceUtilization(device=line.device, slot=slots.get((name, line.device)), mean=list(line.mean))
            for line in gpus
        ],
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known else None


@router.get("/trials/{trial_id}/telemetry", **guarded(Rule.READ))
def telemetry(
    call: CallDep,
    trial_id: int,
    metric: MetricFilter = None,
    attempt: AttemptNumber = None,
    since: datetime | None = None,
    until: datetime | None = None,
    max_points: Annotated[int, Query(ge=10, le=10_000, description="points per series")] = 2000,
) -> Telemetry:
    """Return system metrics of a trial's hosts and GPUs. Without an attempt: of all attempts."""
    readable_trials(call.store, call.access, [trial_id])
    options: Any = {"attempt": attempt, "metrics": metric or None, "max_points": max_points}
    options |= {"since": _aware(since, "since"), "until": _aware(until, "until")}
    store = call.store.telemetry
    return call.answer(
        store.version(trial_id),
        make=lambda: Telemetry(series=[series_of(one) for one in store.series(trial_id, **options)]),
    )


def _aware(at: datetime | None, name: str) -> datetime | None:
    if at is not None and at.tzinfo is None:
        raise UserError(f"{name} must have a time zone, for example 2026-01-31T12:00:00Z, got {at.isoformat()}.")
    return at


@router.get("/trials/{trial_id}/timings", **guarded(Rule.READ))
def timings(call: CallDep, trial_id: int, attempt: AttemptNumber = None, buckets: Buckets = 200) -> Timings:
    """Return the parts of the steps of an attempt over time."""
    readable_trials(call.store, call.access, [trial_id])
    return call.answer(call.store.telemetry.version(trial_id), make=lambda: _timings(call, trial_id, attempt, buckets))


def _timings(call: Call, trial_id: int, attempt: int | None, buckets: int) -> Timings:
    found = call.store.telemetry.timings(trial_id, attempt, buckets)
    return Timings(
        attempt=found.attempt,
        at_s=list(found.at_s),
        bucket_s=found.bucket_s,
        names=[part.name for part in found.parts],
        share={part.name: [point(value) for value in part.share] for part in found.parts},
        parts=[TimingPart(name=part.name, total_s=part.total_s, share=part.total_share) for part in found.parts],
        totals=list(found.totals),
    )


@router.get("/trials/{trial_id}/step_times", **guarded(Rule.READ))
def step_times(call: CallDep, trial_id: int, attempt: AttemptNumber = None, buckets: Buckets = 200) -> StepTimes:
    """Return the step time of each rank of an attempt over time, and the ranks that are slow."""
    readable_trials(call.store, call.access, [trial_id])
    return call.answer(
        call.store.telemetry.version(trial_id), make=lambda: _step_times(call, trial_id, attempt, buckets)
    )


def _step_times(call: Call, trial_id: int, attempt: int | None, buckets: int) -> StepTimes:
    found = call.store.telemetry.step_times(trial_id, attempt, buckets)
    of = attempt_of(call.store, call.store.trials.get(trial_id), found.attempt)
    slots = {rank.rank: rank.slot for rank in call.store.events.ranks(of.attempt_id)}
    return StepTimes(
        attempt=found.attempt,
        at_s=list(found.at_s),
        bucket_s=found.bucket_s,
        ranks=[
            RankPlace(rank=one.rank, host=one.host, slot=_slot(slots.get(one.rank)), ratio=one.ratio)
            for one in found.ranks
        ],
        mean_s=[[point(value) for value in one.busy_s] for one in found.ranks],
        median_s=found.median_busy_s,
        slow_ranks=slow_ranks_of(found),
    )


def _slot(index: int | None) -> int | None:
    return None if index is None or index < 0 else index


@router.get("/trials/{trial_id}/profile", response_model=Profile, **guarded(Rule.READ))
def profile(call: CallDep, trial_id: int, attempt: AttemptNumber = None) -> Any:
    """Return the summary of an attempt: timings of batches, and ranges of system metrics."""
    readable_trials(call.store, call.access, [trial_id])
    version = call.store.telemetry.version(trial_id)
    return call.answer(version, make=lambda: profile_of(call.store, call.access, trial_id, attempt))
