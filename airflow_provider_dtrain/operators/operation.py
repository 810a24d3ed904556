"""Operator that executes what a user requested from hosts through the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_dtrain.errors import NotFoundError
from airflow_provider_dtrain.hooks.arguments import COUNT, CheckedArguments, Kind


class OperationOperator(CheckedArguments, BaseOperator):
    """Execute one operation: the logs, files, stacks, commands or probes that a user of the API requested.

    The store has the request, which the API checked against the rights of its user. A run of the DAG with another
    number executes nothing.

    :param operation_id: number of the operation (templated)
    """

    template_fields: Sequence[str] = ("operation_id",)
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {"operation_id": COUNT}

    def __init__(self, *, operation_id: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check_arguments(self.task_id, {"operation_id": operation_id})
        self.operation_id = operation_id

    def execute(self, context: Any) -> None:
        """Execute the operation. Its errors go to the user, not to this task.

        :raises NotFoundError: no operation with this number waits for a DAG run
        """
        from airflow_provider_dtrain.engine.operations.execution import serve
        from airflow_provider_dtrain.engine.operations.ranks import NotWantedError
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook
        from airflow_provider_dtrain.store.records.operations import Through

        hook = DtrainHook()
        number = str(self.operation_id)
        is_number = number.isascii() and number.isdigit() and len(number) < 19
        taken = hook.store.operations.take(int(number), Through.DAG) if is_number else None
        if taken is None:
            raise NotFoundError(f"No operation {number[:40]!r} waits for a run of this DAG. The API starts these runs.")
        trial = "" if taken.trial_id is None else f" of trial {taken.trial_id}"
        self.log.info("Operation %d%s: %s, requested by %s", taken.operation_id, trial, taken.kind, taken.by)
        try:
            serve(hook, taken)
        except NotWantedError:
            self.log.info("The user no longer waits for it")
        finally:
            # A command beside a rank ends with its channel.
            hook.links.close_all()
        ended = hook.store.operations.get(taken.operation_id)
        self.log.info("Operation %d: %s%s", taken.operation_id, ended.state, f": {ended.error}" if ended.error else "")
