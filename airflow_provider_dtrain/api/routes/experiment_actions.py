"""Actions on experiments."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.experiment_rows import experiment_row
from airflow_provider_dtrain.api.found import experiment_entry
from airflow_provider_dtrain.api.models.experiments import ExperimentAction, Labels
from airflow_provider_dtrain.api.models.queue import Priority, Share
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.states import EXPERIMENT_LIVE, TRIAL_LIVE
from airflow_provider_dtrain.errors import ConflictError, UserError
from airflow_provider_dtrain.listings.experiments import wider_trials
from airflow_provider_dtrain.store.records.pages import ExperimentEntry
from airflow_provider_dtrain.store.records.trials import TrialKey

router = APIRouter(route_class=StoreRoute, tags=["experiment actions"], responses=ERRORS)


@router.post("/experiments/{experiment_id}/pause", **guarded(Rule.EDIT_DAG))
def pause(call: CallDep, experiment_id: int) -> ExperimentAction:
    """Pause an experiment: its trials release their slots until it is activated."""
    _begun(call, "experiment_pause", experiment_id)
    count = call.store.experiments.pause(experiment_id, call.access.name)
    return _answer(call, experiment_id, f"{_trials(count)} paused or asked to release slots, and none starts.")


@router.post("/experiments/{experiment_id}/activate", **guarded(Rule.EDIT_DAG))
def activate(call: CallDep, experiment_id: int) -> ExperimentAction:
    """Resume the paused trials of an experiment."""
    _begun(call, "experiment_activate", experiment_id)
    count = call.store.experiments.activate(experiment_id, call.access.name)
    return _answer(call, experiment_id, f"{_trials(count)} back in the queue.")


@router.post("/experiments/{experiment_id}/stop", **guarded(Rule.EDIT_DAG))
def stop(call: CallDep, experiment_id: int) -> ExperimentAction:
    """End an experiment with its best trial so far."""
    _require_live(_begun(call, "experiment_stop", experiment_id))
    count = call.store.experiments.stop(experiment_id, call.access.name)
    words = f"{_trials(count)} asked to end. Running trials write a checkpoint first."
    return _answer(call, experiment_id, words)


@router.post("/experiments/{experiment_id}/kill", **guarded(Rule.EDIT_DAG))
def kill(call: CallDep, experiment_id: int) -> ExperimentAction:
    """Kill all trials of an experiment."""
    _require_live(_begun(call, "experiment_kill", experiment_id))
    count = call.store.experiments.kill(experiment_id, call.access.name)
    return _answer(call, experiment_id, f"{_trials(count)} killed within seconds.")


@router.post("/experiments/{experiment_id}/priority", **guarded(Rule.CHANGE_HOSTS))
def priority(call: CallDep, experiment_id: int, body: Priority) -> ExperimentAction:
    """Change the priority of all gangs of an experiment, waiting or running."""
    entry = experiment_entry(call, experiment_id)
    call.access.require_queue(entry.view.dag_id)
    call.log_action("experiment_priority", _key(entry), experiment_id=experiment_id, priority=body.priority)
    call.store.experiments.set(experiment_id, priority=body.priority, by=call.access.name)
    return _answer(call, experiment_id, f"The gangs of experiment {experiment_id} have priority {body.priority}.")


@router.post("/experiments/{experiment_id}/share", **guarded(Rule.CHANGE_HOSTS))
def share(call: CallDep, experiment_id: int, body: Share) -> ExperimentAction:
    """Change the weight of an experiment, or the most slots that its gangs hold together."""
    entry = experiment_entry(call, experiment_id)
    call.access.require_queue(entry.view.dag_id)
    given = body.model_dump(exclude_none=True)
    call.log_action("experiment_share", _key(entry), experiment_id=experiment_id, **given)
    if not given:
        raise UserError("Nothing to set: give weight or max_slots.")
    call.store.experiments.set(experiment_id, by=call.access.name, **given)
    message = f"Experiment {experiment_id} has {', '.join(f'{name} {value:g}' for name, value in given.items())}."
    if wider := wider_trials(call.store, experiment_id, body.max_slots):
        message += f" Warning: {wider}"
    return _answer(call, experiment_id, message)


@router.patch("/experiments/{experiment_id}", **guarded(Rule.EDIT_DAG))
def set_labels(call: CallDep, experiment_id: int, body: Labels) -> ExperimentAction:
    """Change display name, description or tags of an experiment."""
    _begun(call, "experiment_labels", experiment_id)
    labels = body.model_dump(exclude_unset=True)
    call.store.labels.set("experiment", experiment_id, by=call.access.name, **labels)
    return _answer(call, experiment_id, f"The labels of experiment {experiment_id} are changed.")


def _begun(call: Call, event: str, experiment_id: int) -> ExperimentEntry:
    """Check the right to edit the experiment's DAG run, and write the audit log."""
    entry = experiment_entry(call, experiment_id)
    call.access.require_edit(entry.view.dag_id)
    call.log_action(event, _key(entry), experiment_id=experiment_id)
    return entry


def _key(entry: ExperimentEntry) -> TrialKey:
    return TrialKey(dag_id=entry.view.dag_id, run_id=entry.view.run_id, task_id="")


def _require_live(entry: ExperimentEntry) -> None:
    live = sum(entry.view.trials.get(state, 0) for state in TRIAL_LIVE)
    if entry.view.state not in EXPERIMENT_LIVE and not live:
        raise ConflictError(f"Experiment {entry.view.experiment_id} has ended already: {entry.view.state}.")


def _trials(count: int) -> str:
    return "1 trial is" if count == 1 else f"{count} trials are"


def _answer(call: Call, experiment_id: int, message: str) -> ExperimentAction:
    entry = experiment_entry(call, experiment_id)
    may_edit = bool(call.access.may_edit({entry.view.dag_id}))
    return ExperimentAction(message=message, experiment=experiment_row(entry, may_edit=may_edit))
