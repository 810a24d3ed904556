"""Control requests of the user of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.host_work import requested
from airflow_provider_dtrain.api.models.changes import TrialChange
from airflow_provider_dtrain.core.lifecycle.control import OF_QUEUE, Change, Noun
from airflow_provider_dtrain.engine.control import StoreControl, lost_followers
from airflow_provider_dtrain.errors import ConflictError, DtrainError
from airflow_provider_dtrain.store.records.operations import OperationKind
from airflow_provider_dtrain.store.records.trials import TrialKey


def control_of(call: Call) -> StoreControl:
    """Return the control requests of a user. A run of the DAG for operations acts in place of followers that are gone.

    The caller has checked the rights of the user.
    """

    def through_dag(trials: Sequence[int], command: str) -> str:
        arguments = {"trials": list(trials), "command": command}
        try:
            operation = requested(call, OperationKind.CONTROL, None, arguments)
        except (ApiError, DtrainError) as error:
            return f"{lost_followers(trials)}. {error}"
        return f"{lost_followers(trials)}: run {operation.dag_run} of the DAG {operation.dag_id} carries it out."

    def reach(host: str) -> None:
        raise ConflictError(
            f"Host '{host}' does not answer, and the API server opens no connection to hosts. "
            f"On the machine of Airflow: airflow dtrain hosts enable {host}"
        )

    def remove(experiments: Sequence[int]) -> str:
        arguments = {"trials": [], "experiments": list(experiments), "command": "gc"}
        try:
            operation = requested(call, OperationKind.CONTROL, None, arguments)
        except (ApiError, DtrainError) as error:
            return f"Files and rows are removed by the next: airflow dtrain gc. {error}"
        return f"Run {operation.dag_run} of the DAG {operation.dag_id} removes files and rows."

    return StoreControl(call.store, call.access.name, through_dag, reach, remove)


def change_of(call: Call, noun: Noun, number: int, key: TrialKey, body: TrialChange) -> Change:
    """Return a requested change, once the rights to all of its fields are checked and the audit log is written.

    :raises ApiError: the user lacks a right
    """
    change = cast("Change", body.model_dump(exclude_none=True))
    if change.keys() - OF_QUEUE or not change:
        call.access.require_edit(key.dag_id)
    if change.keys() & OF_QUEUE:
        call.access.require_queue(key.dag_id)
    of_queue = {name: value for name, value in change.items() if name in OF_QUEUE}
    call.log_action(f"{noun}_set", key, **{f"{noun}_id": number}, **of_queue)
    return change
