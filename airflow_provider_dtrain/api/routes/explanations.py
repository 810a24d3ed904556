"""Explanations: whether and when a request gets slots, and what it waits for."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import READ_DEADLINE_S, StoreRoute
from airflow_provider_dtrain.api.models.configs import ConfigText
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.validation import check, document_of
from airflow_provider_dtrain.core.config import refuse_unsupported
from airflow_provider_dtrain.engine.submission.explanation import explain_config, explain_gang, explain_trial
from airflow_provider_dtrain.resources.explanations import Explanation
from airflow_provider_dtrain.store.queries.rights import ID_MOST

router = APIRouter(route_class=StoreRoute, tags=["queue"], responses=ERRORS)


@router.get("/trials/{trial_id}/explanation", response_model=Explanation, **guarded(Rule.READ))
def of_trial(call: CallDep, trial_id: int) -> Any:
    """Return where a trial runs, or why it waits."""
    return explain_trial(call.store, call.access, trial_id)


@router.get("/gangs/{allocation_id}/explanation", response_model=Explanation, **guarded(Rule.READ))
def of_gang(call: CallDep, allocation_id: Annotated[int, Path(ge=1, le=ID_MOST)]) -> Any:
    """Return where a gang runs, or why it waits. A gang that a sensor waits for has no trial."""
    return explain_gang(call.store, call.access, allocation_id)


@router.post("/configs/explain", response_model=Explanation, **guarded(Rule.READ))
async def of_config(call: CallDep, body: ConfigText) -> Any:
    """Return the decision that the next scheduling pass would make for a configuration. Nothing is stored."""
    return await call.compute(lambda: _of_config(call, body), READ_DEADLINE_S, is_write=False)


def _of_config(call: Call, body: ConfigText) -> Explanation:
    found, _ = check(call, document_of(body), body.template)
    refuse_unsupported(found.effective.config, found.effective.origins)
    return explain_config(call.store, found.pool, found.effective.config, "configuration")
