"""Traces of the profiler, as flame graphs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from airflow_provider_dtrain.api.bounds import FilePath
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import READ_DEADLINE_S, StoreRoute
from airflow_provider_dtrain.api.routes.files import output
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.trace_flames import FlameGraph, flame_graph

router = APIRouter(route_class=StoreRoute, tags=["files"], responses=ERRORS)


@router.get("/trials/{trial_id}/flames", response_model=FlameGraph, **guarded(Rule.READ))
async def flames(
    call: CallDep, trial_id: int, file: Annotated[FilePath, Query(description="path of an output that is a trace")]
) -> Response:
    """Return a trace of the profiler as a flame graph. The outputs of the trial have the trace itself."""
    answer: Response = await call.compute(lambda: _flames(call, trial_id, file), READ_DEADLINE_S * 3, is_write=False)
    return answer


def _flames(call: Call, trial_id: int, file: str) -> Response:
    found = output(call, trial_id, file)
    version = (trial_id, file, found.size_bytes, found.modified_s)
    answer: Response = call.answer(*version, make=lambda: flame_graph(found.pieces, is_packed=file.endswith(".gz")))
    return answer
