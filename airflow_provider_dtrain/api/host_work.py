"""Requests to hosts, which the API server does not reach: followers and runs of a DAG execute them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.init_dags import OPERATIONS_DAG_ID, trigger, unusable
from airflow_provider_dtrain.api.models import operations as models
from airflow_provider_dtrain.core.lifecycle.states import STARTED
from airflow_provider_dtrain.core.lifecycle.timing import SILENT_S
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.store.records.operations import FOLLOWER_KINDS, OperationKind, StoredOperation, Through
from airflow_provider_dtrain.store.records.trials import TrialView


def requested(
    call: Call,
    kind: OperationKind,
    trial: TrialView | None,
    arguments: Mapping[str, Any],
    *,
    through: Through | None = None,
) -> models.Operation:
    """Store a request, and trigger the DAG unless a follower executes it.

    :param through: the process that must execute it; None = the follower if there is one
    :raises ApiError: there is neither a follower nor a usable DAG; it names the command
    """
    if through is None and kind in FOLLOWER_KINDS and trial is not None and _has_follower(call, trial):
        through = Through.FOLLOWER
    through = through or Through.DAG
    trial_id = None if trial is None else trial.trial_id
    by = call.access.name
    if trial_id is not None and kind is OperationKind.LOG and arguments.get("keep"):
        earlier = call.store.operations.open_copy(trial_id, arguments, by=by, through=through)
        if earlier is not None:
            return answer_of(call.store.operations.get(earlier))
    instead = in_place_of(kind, trial_id, arguments)
    if through is Through.DAG and (hint := unusable(call.access.operations_dag, OPERATIONS_DAG_ID)):
        words = f"This needs a connection to hosts, which the API server does not open. {hint}"
        raise ApiError(409, "conflict", f"{words}\n{instead}")
    operation_id = call.store.operations.request(kind, trial_id, arguments, by=by, through=through)
    if through is Through.DAG:
        try:
            run = trigger({"operation": operation_id}, by, OPERATIONS_DAG_ID)
        except DtrainError as error:
            call.store.operations.failed(operation_id, str(error))
            raise ApiError(409, "conflict", f"{error}\n{instead}") from error
        call.store.operations.started(operation_id, run)
    return answer_of(call.store.operations.get(operation_id))


def in_place_of(kind: OperationKind, trial_id: int | None, arguments: Mapping[str, Any]) -> str:
    """Return a sentence with the command that does the same on the machine of Airflow."""
    words = {
        OperationKind.LOG: f"trials logs {trial_id}",
        OperationKind.STACKS: f"trials stack {trial_id}",
        OperationKind.PROFILE: f"trials trace {trial_id}",
        OperationKind.EXEC: f"trials exec {trial_id}",
        OperationKind.OUTPUTS: f"trials {'outputs' if arguments.get('list_only') else 'download'} {trial_id}",
        OperationKind.CHECKPOINT: f"trials checkpoints {trial_id}",
        OperationKind.PROBE: f"hosts probe {' '.join(arguments.get('hosts') or ())}".strip(),
        OperationKind.DOCTOR: "doctor",
        OperationKind.CHECK: f"hosts check {' '.join(arguments.get('hosts') or ())}".strip()[:500],
        OperationKind.CONTROL: str(arguments.get("command")),
    }[kind]
    names = {"rank": "rank", "start": "from", "attempt": "attempt", "end": "to", "timeout_s": "timeout"}
    for name, option in names.items() if kind is not OperationKind.CHECKPOINT else ():
        if arguments.get(name) is not None:
            words += f" --{option} {arguments[name]}"
    if kind is OperationKind.EXEC:
        words += f" -- {shlex.join(arguments['argv'])[:500]}"
    return f"Or on the machine of Airflow: airflow dtrain {words}"


def _has_follower(call: Call, trial: TrialView) -> bool:
    view = call.store.attempts.get(trial.attempt_id)
    return view.state in STARTED and call.store.attempts.silent_for_s(view.attempt_id) < SILENT_S


def answer_of(found: StoredOperation) -> models.Operation:
    """Return an operation as the body of an answer."""
    return models.Operation(
        operation_id=found.operation_id,
        kind=found.kind,
        trial_id=found.trial_id,
        state=found.state,
        requested_at=found.requested_at,
        through=found.through,
        dag_id=OPERATIONS_DAG_ID if found.through is Through.DAG else None,
        dag_run=found.dag_run,
        size_bytes=found.size_bytes,
        result=None if found.result is None else dict(found.result),
        error=found.error,
    )
