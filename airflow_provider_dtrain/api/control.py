"""Control requests of the user of a request."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.errors import ApiError
from airflow_provider_dtrain.api.host_work import requested
from airflow_provider_dtrain.engine.control import Control, lost_followers
from airflow_provider_dtrain.errors import DtrainError
from airflow_provider_dtrain.store.records.operations import OperationKind


def control_of(call: Call) -> Control:
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

    return Control(call.store, call.access.name, through_dag)
