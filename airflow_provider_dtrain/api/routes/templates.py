"""Templates of configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_dtrain.api.bounds import NUMBER_MOST, NameInPath
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import READ_DEADLINE_S, WRITE_DEADLINE_S, StoreRoute
from airflow_provider_dtrain.api.models.common import Done
from airflow_provider_dtrain.api.models.configs import CheckedTemplate, TemplateText
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.validation import checked_template, template_problems
from airflow_provider_dtrain.resources.templates import Template, TemplateList

router = APIRouter(prefix="/templates", route_class=StoreRoute, tags=["templates"], responses=ERRORS)


@router.get("", response_model=TemplateList, **guarded(Rule.READ))
def templates(
    call: CallDep, texts: Annotated[bool, Query(description="also the text of each template")] = False
) -> Any:
    """Return the stored templates by name."""
    return TemplateList(rows=[one if texts else replace(one, text="") for one in call.store.templates.list()])


@router.post("/validate", **guarded(Rule.READ))
async def validate(call: CallDep, body: TemplateText) -> CheckedTemplate:
    """Return the problems of a text as a template, with their lines. Nothing is stored."""
    return await call.compute(lambda: template_problems(body.text), READ_DEADLINE_S, is_write=False)


@router.get("/{name}", response_model=Template, **guarded(Rule.READ))
def template(
    call: CallDep,
    name: NameInPath,
    version: Annotated[int | None, Query(ge=1, le=NUMBER_MOST, description="the current one without it")] = None,
) -> Any:
    """Return a version of a template with its text."""
    return call.store.templates.get(name, version)


@router.get("/{name}/versions", response_model=TemplateList, **guarded(Rule.READ))
def versions(call: CallDep, name: NameInPath) -> Any:
    """Return all versions of a template without their texts, oldest first."""
    return TemplateList(rows=[replace(one, text="") for one in call.store.templates.versions(name)])


@router.put("/{name}", response_model=Template, **guarded(Rule.CHANGE_HOSTS))
async def set_template(call: CallDep, name: NameInPath, body: TemplateText) -> Any:
    """Store a text as the next version of a template, if it is valid."""
    return await call.compute(lambda: _stored(call, name, body.text), WRITE_DEADLINE_S)


def _stored(call: Call, name: str, text: str) -> Template:
    # A template decides about the runs of all users who name it.
    call.access.require_all_hosts()
    checked_template(text)
    call.log_action("template_set", None, template=name)
    return call.store.templates.get(name, call.store.templates.set(name, text, by=call.access.name))


@router.delete("/{name}", **guarded(Rule.CHANGE_HOSTS))
def remove(call: CallDep, name: NameInPath) -> Done:
    """Remove a template. Its versions stay in the history."""
    call.access.require_all_hosts()
    call.store.templates.get(name)
    call.log_action("template_remove", None, template=name)
    call.store.templates.remove(name, by=call.access.name)
    return Done(message=f"Template '{name}' is removed.")
