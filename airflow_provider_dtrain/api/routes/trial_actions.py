"""Actions on trials and held gangs."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.control import change_of, control_of
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.changes import TrialChange
from airflow_provider_dtrain.api.models.experiments import TrialAction
from airflow_provider_dtrain.api.models.queue import GangAction
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.control import Verb
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.store.queries.rights import readable_trial
from airflow_provider_dtrain.store.queries.trials import trials_by_id

router = APIRouter(route_class=StoreRoute, tags=["trial actions"], responses=ERRORS)


@router.post("/trials/{trial_id}/pause", **guarded(Rule.EDIT_DAG))
def pause(call: CallDep, trial_id: int) -> TrialAction:
    """Pause a trial: it saves a checkpoint and releases its slots until it is activated."""
    return _requested(call, trial_id, "pause")


@router.post("/trials/{trial_id}/activate", **guarded(Rule.EDIT_DAG))
def activate(call: CallDep, trial_id: int) -> TrialAction:
    """Resume a paused trial at its place in the queue."""
    return _requested(call, trial_id, "activate")


@router.post("/trials/{trial_id}/stop", **guarded(Rule.EDIT_DAG))
def stop(call: CallDep, trial_id: int) -> TrialAction:
    """End a trial with its best result so far."""
    return _requested(call, trial_id, "stop")


@router.post("/trials/{trial_id}/kill", **guarded(Rule.EDIT_DAG))
def kill(call: CallDep, trial_id: int) -> TrialAction:
    """Kill a trial, on every host or in the queue."""
    return _requested(call, trial_id, "kill")


@router.patch("/trials/{trial_id}", **guarded(Rule.EDIT_DAG))
def set_trial(call: CallDep, trial_id: int, body: TrialChange) -> TrialAction:
    """Change labels of a trial, or its priority, which needs the right to edit connections instead."""
    key = readable_trial(call.store, call.access, trial_id).key
    change = change_of(call, "trial", trial_id, key, body)
    return _answer(call, trial_id, control_of(call).set("trial", trial_id, change))


@router.post("/gangs/{allocation_id}/kill", **guarded(Rule.EDIT_DAG))
def kill_gang(call: CallDep, allocation_id: int) -> GangAction:
    """End a gang that is held for several tasks. The trial that uses it is killed."""
    missing = f"There is no held gang {allocation_id}. See: airflow dtrain queue list"
    if not 0 < allocation_id < 2**63:
        raise NotFoundError(missing)
    try:
        view = call.store.gangs.get(allocation_id)
    except NotFoundError as error:
        raise NotFoundError(missing) from error
    call.access.require_read(view.key.dag_id, missing)
    call.access.require_edit(view.key.dag_id)
    call.log_action("gang_kill", view.key, allocation_id=allocation_id)
    return GangAction(message=control_of(call).end_gang(allocation_id), allocation_id=allocation_id)


def _require_edit(call: Call, event: str, trial_id: int) -> None:
    """Check the right to edit the trial's DAG run, and write the audit log."""
    view = readable_trial(call.store, call.access, trial_id)
    call.access.require_edit(view.key.dag_id)
    call.log_action(event, view.key, trial_id=trial_id)


def _requested(call: Call, trial_id: int, verb: Verb) -> TrialAction:
    _require_edit(call, f"trial_{verb}", trial_id)
    return _answer(call, trial_id, control_of(call).request("trial", trial_id, verb))


def _answer(call: Call, trial_id: int, message: str) -> TrialAction:
    (trial,) = trials_by_id(call.store, call.access, [trial_id])
    return TrialAction(message=message, trial=trial)
