"""Actions on trials and held gangs."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.found import trial_entry, units_in
from airflow_provider_dtrain.api.models.experiments import Labels, TrialAction
from airflow_provider_dtrain.api.models.queue import GangAction, Priority
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.trial_rows import trial_row
from airflow_provider_dtrain.core.lifecycle.states import TRIAL_ENDED, TRIAL_LIVE
from airflow_provider_dtrain.errors import ConflictError, NotFoundError
from airflow_provider_dtrain.store.records.trials import TrialView

router = APIRouter(route_class=StoreRoute, tags=["trial actions"], responses=ERRORS)


@router.post("/trials/{trial_id}/priority", **guarded(Rule.CHANGE_HOSTS))
def priority(call: CallDep, trial_id: int, body: Priority) -> TrialAction:
    """Change the priority of a trial's gang, waiting or running."""
    view = trial_entry(call, trial_id).view
    call.access.require_queue(view.key.dag_id)
    call.log_action("trial_priority", view.key, trial_id=trial_id, priority=body.priority)
    if view.state in TRIAL_ENDED:
        raise ConflictError(f"Trial {trial_id} has ended ({view.state}), so its priority cannot be changed.")
    call.store.control.set_priority(trial_id, body.priority, call.access.name)
    return _answer(call, trial_id, f"Trial {trial_id} has priority {body.priority}.")


@router.post("/trials/{trial_id}/pause", **guarded(Rule.EDIT_DAG))
def pause(call: CallDep, trial_id: int) -> TrialAction:
    """Pause a trial: it saves a checkpoint and releases its slots until it is activated."""
    by = _begun(call, "trial_pause", trial_id)
    call.store.control.pause(trial_id, by)
    if call.store.trials.get(trial_id).state == "paused":
        return _answer(call, trial_id, f"Trial {trial_id} is paused. It keeps its place in the queue.")
    return _answer(call, trial_id, f"Trial {trial_id} was asked to save a checkpoint and to release its slots.")


@router.post("/trials/{trial_id}/activate", **guarded(Rule.EDIT_DAG))
def activate(call: CallDep, trial_id: int) -> TrialAction:
    """Resume a paused trial at its place in the queue."""
    by = _begun(call, "trial_activate", trial_id)
    if not call.store.control.activate(trial_id, by):
        raise ConflictError(f"Trial {trial_id} is not paused: {call.store.trials.get(trial_id).state}.")
    return _answer(call, trial_id, f"Trial {trial_id} resumes at its place in the queue.")


@router.post("/trials/{trial_id}/stop", **guarded(Rule.EDIT_DAG))
def stop(call: CallDep, trial_id: int) -> TrialAction:
    """End a trial with its best result so far."""
    by = _begun(call, "trial_stop", trial_id, needs_live=True)
    call.store.control.stop(trial_id, by)
    words = f"Trial {trial_id} was asked to end with its best result so far. If it runs, it writes a checkpoint first."
    return _answer(call, trial_id, words)


@router.post("/trials/{trial_id}/kill", **guarded(Rule.EDIT_DAG))
def kill(call: CallDep, trial_id: int) -> TrialAction:
    """Kill a trial, on every host or in the queue."""
    by = _begun(call, "trial_kill", trial_id, needs_live=True)
    call.store.control.kill(trial_id, by)
    return _answer(call, trial_id, f"Trial {trial_id} is killed within seconds by the process that follows it.")


@router.patch("/trials/{trial_id}", **guarded(Rule.EDIT_DAG))
def set_labels(call: CallDep, trial_id: int, body: Labels) -> TrialAction:
    """Change display name, description or tags of a trial."""
    by = _begun(call, "trial_labels", trial_id)
    call.store.labels.set("trial", trial_id, by=by, **body.model_dump(exclude_unset=True))
    return _answer(call, trial_id, f"The labels of trial {trial_id} are changed.")


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
    call.store.gangs.end(allocation_id, f"ended by {call.access.name}")
    words = f"Held gang {allocation_id} ends. A trial that uses it is stopped first."
    return GangAction(message=words, allocation_id=allocation_id)


def _begun(call: Call, event: str, trial_id: int, *, needs_live: bool = False) -> str:
    """Check the right to edit the trial's DAG run, write the audit log, and return the user's name."""
    view: TrialView = trial_entry(call, trial_id).view
    call.access.require_edit(view.key.dag_id)
    call.log_action(event, view.key, trial_id=trial_id)
    if needs_live and view.state not in TRIAL_LIVE:
        raise ConflictError(f"Trial {trial_id} has ended already: {view.state}.")
    return call.access.name


def _answer(call: Call, trial_id: int, message: str) -> TrialAction:
    entry = trial_entry(call, trial_id)
    units = units_in(call.store.configs.get(entry.view.config_id))
    return TrialAction(message=message, trial=trial_row(call, entry, units))
