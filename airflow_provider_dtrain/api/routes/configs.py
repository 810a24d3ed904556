"""Validation as a user types, and the start of experiments."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.execution import READ_DEADLINE_S, WRITE_DEADLINE_S, StoreRoute, as_answer
from airflow_provider_dtrain.api.fork_source import fork_source as source_of_fork
from airflow_provider_dtrain.api.forks import payload_of
from airflow_provider_dtrain.api.init_dags import DAG_ID, trigger
from airflow_provider_dtrain.api.models.configs import Document, Validation
from airflow_provider_dtrain.api.models.experiments import ForkSource, NewExperiment, Started
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.api.validation import checked_config, validation
from airflow_provider_dtrain.engine.submission.granted import grant
from airflow_provider_dtrain.errors import NotFoundError, UserError
from airflow_provider_dtrain.resources.provenance import GitState
from airflow_provider_dtrain.store.queries.experiments import config_of
from airflow_provider_dtrain.store.queries.rights import readable_experiment
from airflow_provider_dtrain.store.records.trials import TrialKey

router = APIRouter(route_class=StoreRoute, tags=["starting"], responses=ERRORS)


@router.post("/configs/validate", response_model=Validation, **guarded(Rule.READ))
async def validate(call: CallDep, body: Document) -> Response:
    """Return the problems of a configuration with their lines, or its summary. Nothing is stored."""
    answer: Response = await call.compute(lambda: as_answer(validation(call, body)), READ_DEADLINE_S, is_write=False)
    return answer


@router.get("/experiments/{experiment_id}/fork", **guarded(Rule.READ))
def fork_source(call: CallDep, experiment_id: int) -> ForkSource:
    """Return the submitted configuration of an experiment as a start for another one. Secrets are masked."""
    entry = readable_experiment(call.store, call.access, experiment_id)
    config = config_of(call.store, experiment_id)
    if config is None:
        raise NotFoundError(f"Experiment {experiment_id} has no trial and no plan, so it has no configuration yet.")
    return source_of_fork(call, entry, config)


@router.post("/experiments", status_code=202, **guarded(Rule.START))
async def start(call: CallDep, body: NewExperiment) -> Started:
    """Check and store a configuration, and trigger the DAG that runs it."""
    return await call.compute(lambda: _started(call, body), WRITE_DEADLINE_S)


def _started(call: Call, body: NewExperiment) -> Started:
    call.access.require_start()
    payload = body.payload
    git = None if body.git is None else GitState(**body.git.model_dump())
    if body.fork_of is not None:
        readable_experiment(call.store, call.access, body.fork_of)
    if payload is None and body.fork_of is not None:
        payload = payload_of(call, body.fork_of)
        git = None if payload is None else call.store.provenance.git_of(body.fork_of, payload)
    if payload == "":
        raise UserError("payload must be the digest of code that was sent to /code, or null, got an empty text.")
    stored = checked_config(call, body)
    conf = {"config": {"config_id": stored.config_id, "digest": stored.digest}, "payload": payload}
    key = TrialKey(dag_id=DAG_ID, run_id="", task_id="")
    call.log_action("experiment_start", key, config_id=stored.config_id, fork_of=body.fork_of, payload=payload)
    granted = grant(call.store, DAG_ID, stored, payload, call.access.user_id, git=git, fork_of=body.fork_of)
    run_id = trigger(conf, call.access.name, run_id=granted)
    words = f"DAG run {run_id} of {DAG_ID} plans the experiment '{stored.document['name']}'."
    return Started(dag_id=DAG_ID, run_id=run_id, message=words)
