"""The timeline of an experiment: its trials on their slots."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.experiment_timeline import SlotTimeline
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.store.pages.experiment_timeline import AttemptSpan
from airflow_provider_dtrain.store.queries.rights import readable_plan

router = APIRouter(route_class=StoreRoute, tags=["experiment"], responses=ERRORS)


@router.get("/experiments/{experiment_id}/timeline", **guarded(Rule.READ))
def experiment_timeline(
    call: CallDep,
    experiment_id: int,
    limit: Annotated[int, Query(ge=1, le=10_000, description="attempts, the latest ones")] = 1500,
) -> SlotTimeline:
    """Return which trial of an experiment held which slots, and when."""
    plan = readable_plan(call.store, call.access, experiment_id)
    store = call.store
    version = (store.experiment_timeline.version(experiment_id), store.trial_table.version(experiment_id))

    def make() -> dict[str, Any]:
        spans, total = store.experiment_timeline.spans(experiment_id, most=limit)
        return {"total": total, "spans": [_record(one) for one in spans]}

    return call.answer(plan.experiment_id, limit, version, make=make)


def _record(span: AttemptSpan) -> dict[str, Any]:
    return {
        "trial_id": span.trial_id,
        "number": span.trial_number,
        "state": span.trial_state,
        "metric": span.metric,
        "attempt": span.attempt,
        "attempt_state": span.attempt_state,
        "granted_at": span.granted_at,
        "started_at": span.started_at,
        "ended_at": span.ended_at,
        "placement": span.placement,
    }
