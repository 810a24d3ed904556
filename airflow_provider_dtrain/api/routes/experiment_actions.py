"""Actions on experiments."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.control import change_of, control_of
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.changes import ExperimentChange
from airflow_provider_dtrain.api.models.experiments import ExperimentAction
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.control import Verb
from airflow_provider_dtrain.store.queries.experiments import experiment_summary
from airflow_provider_dtrain.store.queries.rights import readable_experiment
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


@router.patch("/experiments/{experiment_id}", **guarded(Rule.EDIT_DAG))
def set_experiment(call: CallDep, experiment_id: int, body: ExperimentChange) -> ExperimentAction:
    """Change labels, or priority, weight and cap of its gangs, which need the right to edit connections instead."""
    entry = readable_experiment(call.store, call.access, experiment_id)
    change = change_of(call, "experiment", experiment_id, _key(entry), body)
    return _answer(call, experiment_id, control_of(call).set("experiment", experiment_id, change))


def _require_edit(call: Call, event: str, experiment_id: int) -> None:
    """Check the right to edit the experiment's DAG run, and write the audit log."""
    entry = readable_experiment(call.store, call.access, experiment_id)
    call.access.require_edit(entry.view.dag_id)
    call.log_action(event, _key(entry), experiment_id=experiment_id)


def _requested(call: Call, experiment_id: int, verb: Verb) -> ExperimentAction:
    _require_edit(call, f"experiment_{verb}", experiment_id)
    return _answer(call, experiment_id, control_of(call).request("experiment", experiment_id, verb))


def _key(entry: ExperimentEntry) -> TrialKey:
    return TrialKey(dag_id=entry.view.dag_id, run_id=entry.view.run_id, task_id="")


def _answer(call: Call, experiment_id: int, message: str) -> ExperimentAction:
    return ExperimentAction(message=message, experiment=experiment_summary(call.store, call.access, experiment_id))
