"""Work on hosts, which the API server does not reach: followers and runs of a DAG execute it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from airflow_provider_dtrain.api.bounds import Offset, OperationInPath
from airflow_provider_dtrain.api.call import Call, CallDep
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.execution import StoreRoute
from airflow_provider_dtrain.api.host_work import answer_of, in_place_of, requested
from airflow_provider_dtrain.api.init_dags import OPERATIONS_DAG_ID, run_state, unusable
from airflow_provider_dtrain.api.models import operations as models
from airflow_provider_dtrain.api.rows import ERRORS
from airflow_provider_dtrain.api.security import Rule, guarded
from airflow_provider_dtrain.errors import NotFoundError, UserError
from airflow_provider_dtrain.store.records.operations import (
    OperationKind,
    OperationState,
    StoredOperation,
)
from airflow_provider_dtrain.store.records.trials import TrialView

router = APIRouter(prefix="/operations", route_class=StoreRoute, tags=["operations"], responses=ERRORS)

#: Most bytes of content in one answer.
CONTENT_BYTES = 4 << 20
#: Hosts of one check.
CHECKED_MOST = 64
#: After this time, the API asks Airflow about a DAG run that has not taken its operation.
RUN_CHECK = timedelta(seconds=20)
_CHANGES_HOSTS = frozenset({OperationKind.EXEC, OperationKind.PROBE, OperationKind.DOCTOR, OperationKind.CHECK})


@router.post("/log", status_code=201, **guarded(Rule.READ_LOGS))
def log(call: CallDep, body: models.LogRequest) -> models.Operation:
    """Request bytes of a rank's log from its host. They are the content of the operation."""
    trial = _trial(call, body.trial_id)
    call.access.require_logs(trial.key.dag_id)
    given = body.model_dump(exclude={"trial_id", "through"})
    return requested(call, OperationKind.LOG, trial, given, through=body.through)


@router.post("/stacks", status_code=201, **guarded(Rule.READ_LOGS))
def stacks(call: CallDep, body: models.StacksRequest) -> models.Operation:
    """Request the Python stacks of running ranks."""
    trial = _trial(call, body.trial_id)
    call.access.require_logs(trial.key.dag_id)
    return requested(call, OperationKind.STACKS, trial, {"rank": body.rank}, through=body.through)


@router.post("/profile", status_code=201, **guarded(Rule.EDIT_DAG))
def profile(call: CallDep, body: models.ProfileRequest) -> models.Operation:
    """Request a trace of the next batches of running ranks. Traces on rank 0's host become outputs of the trial."""
    trial = _trial(call, body.trial_id)
    call.access.require_edit(trial.key.dag_id)
    given = body.model_dump(exclude={"trial_id", "through"})
    call.log_action("trial_profile", trial.key, trial_id=trial.trial_id, **given)
    return requested(call, OperationKind.PROFILE, trial, given, through=body.through)


@router.post("/exec", status_code=201, **guarded(Rule.EXEC))
def run_command(call: CallDep, body: models.ExecRequest) -> models.Operation:
    """Request a command in the environment of a running rank. It needs ``[dtrain] allow_exec``."""
    trial = _trial(call, body.trial_id)
    call.access.require_edit(trial.key.dag_id)
    _require_hosts(call, OperationKind.EXEC, trial, {})
    command = shlex.join(body.argv)
    call.log_action("exec", trial.key, trial_id=trial.trial_id, rank=body.rank, command=command[:4000])
    if not call.hook.settings.allow_exec:
        words = "Commands in the environment of ranks are off."
        raise ApiError(409, "conflict", words, "To allow them, set [dtrain] allow_exec = True.")
    return requested(call, OperationKind.EXEC, trial, body.model_dump(exclude={"trial_id"}))


@router.post("/outputs", status_code=201, **guarded(Rule.FETCH))
def outputs(call: CallDep, body: models.OutputsRequest) -> models.Operation:
    """Request the files that a plain script wrote. The content is a tar archive of them."""
    trial = _trial(call, body.trial_id)
    return requested(call, OperationKind.OUTPUTS, trial, body.model_dump(exclude={"trial_id"}))


@router.post("/checkpoint", status_code=201, **guarded(Rule.FETCH))
def checkpoint(call: CallDep, body: models.CheckpointRequest) -> models.Operation:
    """Request a checkpoint from its host. The content is a tar archive of one folder."""
    trial = _trial(call, body.trial_id)
    return requested(call, OperationKind.CHECKPOINT, trial, body.model_dump(exclude={"trial_id"}))


@router.post("/probe", status_code=201, **guarded(Rule.CHANGE_HOSTS))
def probe(call: CallDep, body: models.ProbeRequest) -> models.Operation:
    """Request a new probe of hosts, whose results are stored."""
    asked = body.model_dump()
    _require_hosts(call, OperationKind.PROBE, None, asked)
    call.log_action("host_probe", None, hosts=body.hosts)
    return requested(call, OperationKind.PROBE, None, asked)


@router.post("/check", status_code=201, **guarded(Rule.CHANGE_HOSTS))
def check(call: CallDep, body: models.CheckRequest) -> models.Operation:
    """Request measurements of hosts, which are compared with those of their peers and with their past."""
    call.access.require_some_hosts()
    names = list(dict.fromkeys(body.hosts)) or [one.name for one in call.store.hosts.registered(body.pool)]
    asked = {"hosts": names, "wait_s": body.wait_s, "tolerance": body.tolerance, "evacuate": body.evacuate}
    if not names:
        raise UserError("There is no host to check. Register one: airflow dtrain hosts add")
    if len(names) > CHECKED_MOST:
        raise UserError(
            f"A check over the API has at most {CHECKED_MOST} hosts, because each pair is measured, got {len(names)}. "
            "Name some of them, or run: airflow dtrain hosts check"
        )
    _require_hosts(call, OperationKind.CHECK, None, asked)
    call.log_action("host_check", None, hosts=names, evacuate=body.evacuate)
    return requested(call, OperationKind.CHECK, None, asked)


@router.post("/doctor", status_code=201, **guarded(Rule.CHANGE_HOSTS))
def doctor(call: CallDep, body: models.DoctorRequest) -> models.Operation:
    """Request the checks of all hosts, which change nothing."""
    _require_hosts(call, OperationKind.DOCTOR, None, {})
    return requested(call, OperationKind.DOCTOR, None, body.model_dump())


@router.get("/{operation_id}", **guarded(Rule.READ))
def operation(call: CallDep, operation_id: OperationInPath) -> models.Operation:
    """Return an operation of this user. Its client asks every few seconds, or it is taken for gone."""
    _own(call, operation_id)
    found = call.store.operations.poll(operation_id)
    if found.state == OperationState.WAITING and found.dag_run is not None and _is_late(call, found):
        _check_run(call, found)
        found = call.store.operations.get(operation_id)
    return answer_of(found)


@router.get("/{operation_id}/content", response_class=Response, **guarded(Rule.READ))
def content(
    call: CallDep,
    operation_id: OperationInPath,
    offset: Annotated[Offset, Query(description="first byte that the client does not have")] = 0,
) -> Response:
    """Return content of an operation of this user, at most 4 MiB. Bytes before the offset are then removed."""
    _own(call, operation_id)
    found = call.store.operations.read(operation_id, offset, CONTENT_BYTES)
    headers = {"Cache-Control": "private, no-store", "Content-Encoding": "identity"}
    return Response(found, media_type="application/octet-stream", headers=headers)


@router.delete("/{operation_id}", **guarded(Rule.FETCH))
def cancel(call: CallDep, operation_id: OperationInPath) -> models.Operation:
    """End an operation of this user, unless it has ended."""
    _own(call, operation_id)
    call.store.operations.failed(operation_id, f"{call.access.name} cancelled it")
    return answer_of(call.store.operations.get(operation_id))


def _trial(call: Call, trial_id: int) -> TrialView:
    trial = call.store.trials.get(trial_id)
    call.access.require_read(trial.key.dag_id, f"There is no trial {trial_id}. See: airflow dtrain trials list")
    return trial


def _own(call: Call, operation_id: int) -> StoredOperation:
    """Return an operation of the user, whose rights may have changed since the request.

    :raises NotFoundError: there is none of this user
    """
    found = call.store.operations.get(operation_id)
    if found.by != call.access.name:
        raise NotFoundError(f"There is no operation {operation_id}, or it ended more than a day ago.")
    trial = None
    if found.trial_id is not None:
        trial = _trial(call, found.trial_id)
        if found.kind in (OperationKind.LOG, OperationKind.STACKS):
            call.access.require_logs(trial.key.dag_id)
        if found.kind in (OperationKind.EXEC, OperationKind.PROFILE):
            call.access.require_edit(trial.key.dag_id)
    _require_hosts(call, found.kind, trial, found.arguments)
    return found


def _require_hosts(call: Call, kind: OperationKind, trial: TrialView | None, arguments: Mapping[str, Any]) -> None:
    """Check that the user may change the hosts that an operation changes.

    :raises ApiError: they may not
    :raises NotFoundError: there is no such host
    """
    if kind in _CHANGES_HOSTS:
        call.access.require_some_hosts()
    hosts = call.store.hosts
    match kind:
        case OperationKind.EXEC if trial is not None:
            # A trial may restart on other hosts of its pool before the command runs.
            call.access.require_hosts(hosts.list(call.store.attempts.get(trial.attempt_id).pool))
        case OperationKind.PROBE | OperationKind.CHECK:
            names = arguments["hosts"]
            call.access.require_hosts([hosts.get(name) for name in names] if names else hosts.registered())
        case OperationKind.DOCTOR:
            call.access.require_all_hosts()


def _is_late(call: Call, found: StoredOperation) -> bool:
    return call.store.db.now() - found.requested_at > RUN_CHECK


def _check_run(call: Call, found: StoredOperation) -> None:
    """End an operation that its DAG run does not take: the run has ended, or its DAG cannot run any longer."""
    state = run_state(OPERATIONS_DAG_ID, found.dag_run or "")
    if state in (None, "failed", "success"):
        words = f"run {found.dag_run} of the DAG {OPERATIONS_DAG_ID} ended without executing it ({state}). See its log."
    elif hint := unusable(call.access.operations_dag, OPERATIONS_DAG_ID):
        words = f"run {found.dag_run} has not executed it. {hint}"
    else:
        return
    instead = in_place_of(found.kind, found.trial_id, found.arguments)
    call.store.operations.failed(found.operation_id, f"{words}\n{instead}")
