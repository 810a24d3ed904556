"""Actions on hosts and slots."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from airflow_provider_dtrain.api.bounds import NameInPath, SlotInPath
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.control import control_of
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.cluster import DrainBody, HostAction, Reason
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.control import Deadline, HostVerb
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.queries.hosts import shown_host, visible_holders

router = APIRouter(route_class=StoreRoute, tags=["hosts"], responses=ERRORS)


@router.post("/hosts/{name}/drain", **guarded(Rule.CHANGE_HOSTS))
def drain(call: CallDep, name: NameInPath, body: DrainBody) -> HostAction:
    """Grant no new slots on a host. Running trials may finish, or resume elsewhere by a deadline."""
    _check_rights(call, name)
    if body.now and body.by is not None:
        raise UserError("A drain has one deadline: give now, or by with a time.")
    by = call.store.db.now() if body.now else body.by
    call.log_action("host_drain", None, host=name, **body.model_dump(mode="json", exclude_defaults=True))
    deadline = None if by is None else Deadline(by=by, kills=body.kill_at_deadline)
    message = control_of(call).drain(name, body.reason, deadline=deadline, dry_run=body.dry_run)
    return _answer(call, name, message)


@router.post("/hosts/{name}/enable", **guarded(Rule.CHANGE_HOSTS))
def enable(call: CallDep, name: NameInPath) -> HostAction:
    """Let a host get gangs again."""
    return _requested(call, name, "enable")


@router.post("/hosts/{name}/disable", **guarded(Rule.CHANGE_HOSTS))
def disable(call: CallDep, name: NameInPath, body: Reason) -> HostAction:
    """Grant no new slots on a host, and kill its trials."""
    return _requested(call, name, "disable", reason=body.reason)


@router.post("/hosts/{name}/slots/{index}/enable", **guarded(Rule.CHANGE_HOSTS))
def enable_slot(call: CallDep, name: NameInPath, index: SlotInPath) -> HostAction:
    """Let a slot be granted again."""
    return _requested(call, name, "enable", slot=index)


@router.post("/hosts/{name}/slots/{index}/disable", **guarded(Rule.CHANGE_HOSTS))
def disable_slot(call: CallDep, name: NameInPath, index: SlotInPath) -> HostAction:
    """Grant a slot no longer. A trial that holds it continues."""
    return _requested(call, name, "disable", slot=index)


def _requested(call: Call, name: str, verb: HostVerb, **options: Any) -> HostAction:
    """Check the right to change the host, write the audit log, and carry the request out."""
    _check_rights(call, name)
    call.log_action(f"{'slot' if 'slot' in options else 'host'}_{verb}", None, host=name, **options)
    return _answer(call, name, control_of(call).host(name, verb, **options))


def _check_rights(call: Call, name: str) -> None:
    call.access.require_some_hosts()
    call.access.require_hosts([call.store.hosts.get(name)])


def _answer(call: Call, name: str, message: str) -> HostAction:
    state = call.store.cluster_page.state(host=name)
    visible = visible_holders(call.dags, state.holders)
    return HostAction(message=message, host=shown_host(state.hosts[0], visible))
