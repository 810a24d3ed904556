"""Actions on hosts and slots."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_provider_dtrain.api.bounds import NameInPath, SlotInPath
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.cluster_rows import host_record
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.cluster import Host, HostAction, Reason
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.states import HostState
from airflow_provider_dtrain.engine.upkeep.host_actions import disable_host
from airflow_provider_dtrain.errors import ConflictError
from airflow_provider_dtrain.store.pages.cluster_hosts import host_cells

router = APIRouter(route_class=StoreRoute, tags=["hosts"], responses=ERRORS)


@router.post("/hosts/{name}/drain", **guarded(Rule.CHANGE_HOSTS))
def drain(call: CallDep, name: NameInPath, body: Reason) -> HostAction:
    """Grant no new slots on a host. Running trials may finish."""
    by = _begun(call, "host_drain", name, reason=body.reason)
    call.store.hosts.set_state(name, HostState.DRAINING, body.reason or f"drained by {by}", by=by)
    return _answer(call, name, f"Host '{name}' gets no new gangs. Running trials may finish.")


@router.post("/hosts/{name}/enable", **guarded(Rule.CHANGE_HOSTS))
def enable(call: CallDep, name: NameInPath) -> HostAction:
    """Let a host get gangs again."""
    by = _begun(call, "host_enable", name)
    record = call.store.hosts.get(name)
    if record.state in ("unreachable", "lost"):
        raise ConflictError(
            f"Host '{name}' is {record.state}, and the API server opens no connection to hosts. "
            f"See: airflow dtrain hosts enable {name}"
        )
    call.store.hosts.set_state(name, HostState.READY, by=by)
    return _answer(call, name, f"Host '{name}' gets gangs again.")


@router.post("/hosts/{name}/disable", **guarded(Rule.CHANGE_HOSTS))
def disable(call: CallDep, name: NameInPath, body: Reason) -> HostAction:
    """Grant no new slots on a host, and kill its trials."""
    by = _begun(call, "host_disable", name, reason=body.reason)
    call.store.hosts.get(name)
    killed = disable_host(call.store, name, by, body.reason)
    words = f" Trials {', '.join(map(str, killed))} are killed." if killed else ""
    return _answer(call, name, f"Host '{name}' is disabled.{words}")


@router.post("/hosts/{name}/slots/{index}/enable", **guarded(Rule.CHANGE_HOSTS))
def enable_slot(call: CallDep, name: NameInPath, index: SlotInPath) -> HostAction:
    """Let a slot be granted again."""
    by = _begun(call, "slot_enable", name, slot=index)
    call.store.hosts.set_slot_enabled(name, index, True, by=by)
    return _answer(call, name, f"Slot {index} of host '{name}' is enabled.")


@router.post("/hosts/{name}/slots/{index}/disable", **guarded(Rule.CHANGE_HOSTS))
def disable_slot(call: CallDep, name: NameInPath, index: SlotInPath) -> HostAction:
    """Grant a slot no longer. A trial that holds it continues."""
    by = _begun(call, "slot_disable", name, slot=index)
    call.store.hosts.set_slot_enabled(name, index, False, by=by)
    return _answer(call, name, f"Slot {index} of host '{name}' is disabled. A trial that holds it continues.")


def _begun(call: Call, event: str, host: str, **extra: object) -> str:
    """Check the right to change hosts, write the audit log, and return the user's name."""
    call.access.require_some_hosts()
    call.access.require_hosts([call.store.hosts.get(host)])
    call.log_action(event, None, host=host, **extra)
    return call.access.name


def _answer(call: Call, name: str, message: str) -> HostAction:
    (mark,) = call.store.cluster_page.state(host=name).hosts
    return HostAction(message=message, host=Host.model_validate(host_record(host_cells(mark), with_devices=True)))
