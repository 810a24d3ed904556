"""Actions on several experiments."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from airflow_provider_dtrain.api import bounds
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.control import control_of
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.engine.bulk_actions import EXPERIMENTS_MOST, bulk_action
from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.resources.bulk import BulkAction, BulkOutcome, BulkResult
from airflow_provider_dtrain.store.queries.rights import readable_experiment
from airflow_provider_dtrain.store.records.trials import TrialKey

router = APIRouter(route_class=StoreRoute, tags=["experiment actions"], responses=ERRORS)


class BulkRequest(Model):
    """Body of an action on several experiments."""

    action: BulkAction
    experiment_ids: Annotated[list[bounds.Id], Field(min_length=1, max_length=EXPERIMENTS_MOST)]
    #: Of ``move``.
    project: bounds.Project | None = None
    #: Which ``tag`` adds.
    tags: bounds.Tags = []
    #: Only return what the action would do.
    dry_run: bool = False


@router.post("/experiments/actions", **guarded(Rule.EDIT_DAG))
def act(call: CallDep, body: BulkRequest) -> BulkResult:
    """Archive, unarchive, move, tag, stop, kill or delete experiments. Each one may be refused alone."""
    admitted: list[int] = []
    refusals: dict[int, ApiError | NotFoundError] = {}
    for one in dict.fromkeys(body.experiment_ids):
        try:
            _admit(call, one, body)
        except (ApiError, NotFoundError) as error:
            refusals[one] = error
        else:
            admitted.append(one)
    if not admitted:
        raise next(iter(refusals.values()))
    found = bulk_action(
        control_of(call), body.action, admitted, project=body.project, tags=body.tags, dry_run=body.dry_run
    )
    refused = [
        BulkOutcome(experiment_id=one, name="", is_refused=True, message=str(error)) for one, error in refusals.items()
    ]
    return replace(found, outcomes=[*found.outcomes, *refused], refused_count=found.refused_count + len(refused))


def _admit(call: Call, experiment_id: int, body: BulkRequest) -> None:
    """Check the right to edit the experiment's DAG run, and write the audit log."""
    entry = readable_experiment(call.store, call.access, experiment_id)
    call.access.require_edit(entry.view.dag_id)
    if not body.dry_run:
        key = TrialKey(dag_id=entry.view.dag_id, run_id=entry.view.run_id, task_id="")
        call.log_action(f"experiment_{body.action}", key, experiment_id=experiment_id)
