"""Reproductions: trials that run another trial again from its record."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.errors import forbidden
from airflow_provider_dtrain.api.execution import WRITE_DEADLINE_S, StoreRoute
from airflow_provider_dtrain.api.forks import is_own
from airflow_provider_dtrain.api.init_dags import DAG_ID, trigger
from airflow_provider_dtrain.api.models.experiments import Started
from airflow_provider_dtrain.api.models.reproductions import ReproductionRequest
from airflow_provider_dtrain.api.named_objects import require_names
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.engine.submission.reproduction import grant_reproduction, recorded_config
from airflow_provider_dtrain.resources.reproductions import TrialReproductions
from airflow_provider_dtrain.store.queries.reproductions import compared, linked_trials, version_of
from airflow_provider_dtrain.store.queries.rights import readable_trial

router = APIRouter(route_class=StoreRoute, tags=["reproductions"], responses=ERRORS)


@router.get("/trials/{trial_id}/reproductions", **guarded(Rule.READ))
def reproductions(call: CallDep, trial_id: int) -> TrialReproductions:
    """Return the trial that a trial runs again, and those that run it again, each with a comparison of the weights."""
    linked = linked_trials(call.store, call.access, trial_id)
    return call.answer(version_of(call.store, linked), make=lambda: compared(call.store, linked))


@router.post("/trials/{trial_id}/reproduce", status_code=202, **guarded(Rule.START))
async def reproduce(call: CallDep, trial_id: int, body: ReproductionRequest) -> Started:
    """Run a trial again: with the same code, configuration, hyperparameters, seed and slots."""
    return await call.compute(lambda: _started(call, trial_id, body), WRITE_DEADLINE_S)


def _started(call: Call, trial_id: int, body: ReproductionRequest) -> Started:
    trial = readable_trial(call.store, call.access, trial_id)
    call.access.require_start()
    if not call.access.may_read_code(trial.key.dag_id):
        raise forbidden(f"read the code of DAG '{trial.key.dag_id}'", "The permission to read its code is needed.")
    require_names(call, recorded_config(call.store, trial))
    copies = is_own(call, trial.key.dag_id, trial.key.run_id)
    given = {one.name: one.value for one in body.secrets}
    granted = grant_reproduction(call.store, trial, given, dag_id=DAG_ID, user_id=call.access.user_id, copies=copies)
    call.log_action("trial_reproduce", trial.key, trial_id=trial_id, config_id=granted.config_id)
    run_id = trigger(granted.conf, call.access.name, run_id=granted.run_id)
    return Started(dag_id=DAG_ID, run_id=run_id, message=f"DAG run {run_id} of {DAG_ID} runs trial {trial_id} again.")
