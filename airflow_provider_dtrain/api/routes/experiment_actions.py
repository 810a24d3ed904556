"""Actions on experiments."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.control import control_of
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.experiment_rows import experiment_row
from airflow_provider_dtrain.api.found import experiment_entry
from airflow_provider_dtrain.api.models.experiments import ExperimentAction, Labels
from airflow_provider_dtrain.api.models.queue import Priority, Share
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.control import Verb
from airflow_provider_dtrain.errors import UserError
from airflow_provider_dtrain.store.records.pages import ExperimentEntry
from airflow_provider_dtrain.store.records.trials import TrialKey

router = APIRouter(route_class=StoreRoute, tags=["experiment actions"], responses=ERRORS)


@router.post("/experiments/{experiment_id}/pause", **guarded(Rule.EDIT_DAG))
def pause(call: CallDep, experiment_id: int) -> ExperimentAction:
    """Pause an experiment: its trials release their slots until it is activated."""
    return _requested(call, experiment_id, "pause")


@router.post("/experiments/{experiment_id}/activate", **guarded(Rule.EDIT_DAG))
def activate(call: CallDep, experiment_id: int) -> ExperimentAction:
    """Resume the paused trials of an experiment."""
    return _requested(call, experiment_id, "activate")


@router.post("/experiments/{experiment_id}/stop", **guarded(Rule.EDIT_DAG))
def stop(call: CallDep, experiment_id: int) -> ExperimentAction:
    """End an experiment with its best trial so far."""
    return _requested(call, experiment_id, "stop")


@router.post("/experiments/{experiment_id}/kill", **guarded(Rule.EDIT_DAG))
def kill(call: CallDep, experiment_id: int) -> ExperimentAction:
    """Kill all trials of an experiment."""
    return _requested(call, experiment_id, "kill")


@router.post("/experiments/{experiment_id}/priority", **guarded(Rule.CHANGE_HOSTS))
def priority(call: CallDep, experiment_id: int, body: Priority) -> ExperimentAction:
    """Change the priority of all gangs of an experiment, waiting or running."""
    entry = experiment_entry(call, experiment_id)
    call.access.require_queue(entry.view.dag_id)
    call.log_action("experiment_priority", _key(entry), experiment_id=experiment_id, priority=body.priority)
    return _answer(call, experiment_id, control_of(call).set_priority("experiment", experiment_id, body.priority))


@router.post("/experiments/{experiment_id}/share", **guarded(Rule.CHANGE_HOSTS))
def share(call: CallDep, experiment_id: int, body: Share) -> ExperimentAction:
    """Change the weight of an experiment, or the most slots that its gangs hold together."""
    entry = experiment_entry(call, experiment_id)
    call.access.require_queue(entry.view.dag_id)
    given = body.model_dump(exclude_none=True)
    call.log_action("experiment_share", _key(entry), experiment_id=experiment_id, **given)
    if not given:
        raise UserError("Nothing to set: give weight or max_slots.")
    return _answer(call, experiment_id, control_of(call).set_share(experiment_id, given))


@router.patch("/experiments/{experiment_id}", **guarded(Rule.EDIT_DAG))
def set_labels(call: CallDep, experiment_id: int, body: Labels) -> ExperimentAction:
    """Change display name, description or tags of an experiment."""
    _require_edit(call, "experiment_labels", experiment_id)
    labels = body.model_dump(exclude_unset=True)
    return _answer(call, experiment_id, control_of(call).set_labels("experiment", experiment_id, labels))


def _require_edit(call: Call, event: str, experiment_id: int) -> None:
    """Check the right to edit the experiment's DAG run, and write the audit log."""
    entry = experiment_entry(call, experiment_id)
    call.access.require_edit(entry.view.dag_id)
    call.log_action(event, _key(entry), experiment_id=experiment_id)


def _requested(call: Call, experiment_id: int, verb: Verb) -> ExperimentAction:
    _require_edit(call, f"experiment_{verb}", experiment_id)
    return _answer(call, experiment_id, control_of(call).request("experiment", experiment_id, verb))


def _key(entry: ExperimentEntry) -> TrialKey:
    return TrialKey(dag_id=entry.view.dag_id, run_id=entry.view.run_id, task_id="")


def _answer(call: Call, experiment_id: int, message: str) -> ExperimentAction:
    entry = experiment_entry(call, experiment_id)
    may_edit = bool(call.access.may_edit({entry.view.dag_id}))
    return ExperimentAction(message=message, experiment=experiment_row(entry, may_edit=may_edit))
