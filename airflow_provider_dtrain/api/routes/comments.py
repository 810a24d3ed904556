"""Comments of users on experiments and trials."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.comments import NewComment
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.core.lifecycle.control import Noun
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.comments import Comments
from airflow_provider_dtrain.store.queries.comments import comments_of
from airflow_provider_dtrain.store.queries.rights import ID_MOST, readable_experiment, readable_trial
from airflow_provider_dtrain.store.records.trials import TrialKey

router = APIRouter(route_class=StoreRoute, tags=["comments"], responses=ERRORS)


@router.get("/experiments/{experiment_id}/comments", **guarded(Rule.READ))
def experiment_comments(call: CallDep, experiment_id: int) -> Comments:
    """Return the comments of an experiment, oldest first."""
    return _comments(call, "experiment", experiment_id)


@router.post("/experiments/{experiment_id}/comments", **guarded(Rule.EDIT_DAG))
def add_experiment_comment(call: CallDep, experiment_id: int, body: NewComment) -> Comments:
    """Add a comment of the user, and return all comments."""
    return _added(call, "experiment", experiment_id, body)


@router.delete("/experiments/{experiment_id}/comments/{comment_id}", **guarded(Rule.EDIT_DAG))
def remove_experiment_comment(call: CallDep, experiment_id: int, comment_id: int) -> Comments:
    """Remove a comment of the user, and return those that are left."""
    return _removed(call, "experiment", experiment_id, comment_id)


@router.get("/trials/{trial_id}/comments", **guarded(Rule.READ))
def trial_comments(call: CallDep, trial_id: int) -> Comments:
    """Return the comments of a trial, oldest first."""
    return _comments(call, "trial", trial_id)


@router.post("/trials/{trial_id}/comments", **guarded(Rule.EDIT_DAG))
def add_trial_comment(call: CallDep, trial_id: int, body: NewComment) -> Comments:
    """Add a comment of the user, and return all comments."""
    return _added(call, "trial", trial_id, body)


@router.delete("/trials/{trial_id}/comments/{comment_id}", **guarded(Rule.EDIT_DAG))
def remove_trial_comment(call: CallDep, trial_id: int, comment_id: int) -> Comments:
    """Remove a comment of the user, and return those that are left."""
    return _removed(call, "trial", trial_id, comment_id)


def _comments(call: Call, noun: Noun, number: int) -> Comments:
    return comments_of(call.store, call.access, noun, number, user_id=call.access.user_id)


def _added(call: Call, noun: Noun, number: int, body: NewComment) -> Comments:
    _require_edit(call, "comment_add", noun, number)
    call.store.comments.add(noun, number, body.text, user_id=call.access.user_id, by=call.access.name)
    return _comments(call, noun, number)


def _removed(call: Call, noun: Noun, number: int, comment_id: int) -> Comments:
    _require_edit(call, "comment_remove", noun, number)
    if not 0 < comment_id <= ID_MOST:
        raise NotFoundError(f"{noun.capitalize()} {number} has no comment {comment_id}.")
    access = call.access
    call.store.comments.remove(noun, number, comment_id, user_id=access.user_id, by=access.name)
    return _comments(call, noun, number)


def _require_edit(call: Call, event: str, noun: Noun, number: int) -> None:
    """Check the right to edit runs of the object's DAG, and write the audit log, without the text."""
    if noun == "trial":
        key = readable_trial(call.store, call.access, number).key
    else:
        view = readable_experiment(call.store, call.access, number).view
        key = TrialKey(dag_id=view.dag_id, run_id=view.run_id, task_id="")
    call.access.require_edit(key.dag_id)
    call.log_action(event, key, **{f"{noun}_id": number})
