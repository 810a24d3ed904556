"""The user, and the OpenAPI document."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from airflow_provider_dtrain import __version__
from airflow_provider_dtrain.api.call import CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.me import Me
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded

#: Airflow's name of a user who has not logged in. Source: its simple and its FAB auth manager.
ANONYMOUS = "Anonymous"

router = APIRouter(route_class=StoreRoute, tags=["user"], responses=ERRORS)


@router.get("/me", **guarded(Rule.READ))
def me(call: CallDep) -> Me:
    """Return the user and their rights."""
    access = call.access
    return Me(
        user=access.name,
        owns_experiments=access.name != ANONYMOUS and call.store.places.is_owner(access.name),
        may_change_hosts=access.may_change_some_hosts,
        starting=access.starting,
        version=__version__,
    )


@router.get("/openapi.json", include_in_schema=False, response_model=None, **guarded(Rule.READ))
def openapi(call: CallDep) -> Response:
    """Return the OpenAPI document."""
    return JSONResponse(call.request.app.openapi())
