"""``@task.dtrain``: a Python function that runs as the ranks of a gang."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk.bases.decorator import DecoratedOperator, _TaskDecorator

from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.decorators._function import check_function, read_function
from airflow_provider_dtrain.decorators._payload import FOLDER, call_of, code_with
from airflow_provider_dtrain.errors import FunctionError
from airflow_provider_dtrain.hooks.arguments import (
    COUNT,
    LIST,
    MAP,
    TEXT,
    CheckedArguments,
    Kind,
    check_mapped_call,
    known,
)
from airflow_provider_dtrain.hooks.tasks import log_mistaken_pool
from airflow_provider_dtrain.operators.trial import TrialOperator

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator
    from airflow.sdk.definitions._internal.expandinput import ExpandInput
    from airflow.sdk.definitions.xcom_arg import XComArg

    from airflow_provider_dtrain.engine.attempt.outcome import Outcome
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hooks.tasks import TaskFacts
    from airflow_provider_dtrain.store.records.trials import Ticket


class DtrainDecoratedOperator(DecoratedOperator, TrialOperator):
    """Runs a function once per slot of a gang. The return value of rank 0 is the task's XCom.

    :param python_callable: the function; its source is sent to the hosts
    :param op_args: positional arguments, as JSON (templated)
    :param op_kwargs: keyword arguments, as JSON (templated)
    :param config: experiment configuration without an entrypoint: a path, YAML text or a dict (templated)
    :param slots: number of slots of the gang; overrides ``config`` (templated)
    :param host_pool: pool of hosts; overrides ``config`` (templated)
    :param environment: lock file, interpreter and variables of the ranks; overrides ``config`` (templated)
    """

    custom_operator_name = "@task.dtrain"
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields, *TrialOperator.template_fields, "slots", "host_pool", "environment",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers, **TrialOperator.template_fields_renderers,
    }  # fmt: skip
    shallow_copy_attrs: Sequence[str] = ("python_callable",)
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {
        **TrialOperator.ARGUMENTS, "op_args": LIST, "op_kwargs": MAP, "slots": COUNT, "host_pool": TEXT,
        "environment": MAP,
    }  # fmt: skip

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        config: str | Mapping[str, Any] | None = None,
        slots: int | str | None = None,
        host_pool: str | None = None,
        environment: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        check_function(python_callable)
        super().__init__(
            kwargs_to_upstream={"config": {} if config is None else config},
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            **kwargs,
        )
        given = {"op_args": op_args, "op_kwargs": op_kwargs, "slots": slots, "host_pool": host_pool}
        self.check_arguments(self.task_id, {**given, "environment": environment})
        self.slots = slots
        self.host_pool = host_pool
        self.environment = environment
        self._context: Context | None = None

    @classmethod
    def documents(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """Yield the configuration with its overrides, the template, and the fields that the other arguments give."""
        from airflow_provider_dtrain.engine.submission.inference import whole

        yield from super().documents(given)
        fields = {"slots_per_trial": given.get("slots"), "pool": given.get("host_pool")}
        resources = {name: known(value) for name, value in fields.items() if value is not None}
        if "slots_per_trial" in resources:
            resources["slots_per_trial"] = whole(resources["slots_per_trial"])
        document = {"resources": resources, "environment": given.get("environment")}
        yield "", {name: value for name, value in document.items() if value}, False

    def execute(self, context: Context) -> Any:
        """Run the function on every rank and return the value of rank 0. Raises like a ``TrialOperator``."""
        self._context = context
        return super().execute(context)

    def _submit(self, hook: DtrainHook, task: TaskFacts) -> list[Ticket]:
        from airflow_provider_dtrain.engine.submission.submit import render
        from airflow_provider_dtrain.store.configs import model_of

        folder = task.folder
        source = read_function(self.python_callable)
        call = call_of(self.python_callable, list(self.op_args), self.op_kwargs, self._context or {})
        gang = self._gang()
        held = hook.store.gangs.get(gang.allocation_id) if gang is not None else None
        document = self._document(folder, source.file_name, slots=held.slots if held is not None else None)
        stored = render(hook, document, self.template, folder, pool=held.pool if held is not None else None)
        if held is None:
            log_mistaken_pool(self, (stored.document.get("resources") or {}).get("pool"), hook.store)
        files = model_of(stored).environment.files()
        with code_with(source, call, folder, stored.document.get("model_dir"), files=files) as root:
            return [self._store(hook, stored, task, gang=gang, folder=root, tree=folder)]

    def _document(self, folder: Path, file_name: str, *, slots: int | None) -> ConfigDocument:
        """Return the configuration with the function as its entrypoint.

        :param slots: number of slots of the held gang; used if neither the operator nor the configuration states one
        """
        from airflow_provider_dtrain.engine.submission.inference import whole
        from airflow_provider_dtrain.engine.submission.submit import read_document

        assert self.config is not None
        document = dict(read_document(self.config, folder, what="configuration"))
        if document.get("entrypoint") is not None:
            raise FunctionError(
                f"config has the entrypoint {document['entrypoint']!r}, but @task.dtrain runs the function "
                f"{self.python_callable.__name__}(). Remove the entrypoint, or use a TrialOperator."
            )
        document["entrypoint"] = ["python", "-m", "airflow_provider_dtrain.train.function", f"{FOLDER}/{file_name}"]
        if self.template is None and "template" not in document:
            document.setdefault("max_restarts", 0)
        resources = dict(document.get("resources") or {})
        if self.slots is not None:
            resources["slots_per_trial"] = whole(self.slots)
        elif slots is not None:
            resources.setdefault("slots_per_trial", slots)
        if self.host_pool:
            resources["pool"] = self.host_pool
        environment = {**(document.get("environment") or {}), **(self.environment or {})}
        return {**document, "resources": resources, **({"environment": environment} if environment else {})}

    def _end(self, outcome: Outcome | None) -> Any:
        ended = super()._end(outcome)
        return None if ended is None else self._returned(int(ended["trial_id"]))

    def _returned(self, trial_id: int) -> Any:
        """Return the value that rank 0's function returned, or None if the function exited the interpreter."""
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook
        from airflow_provider_dtrain.train.function import RETURNED, joined

        store = DtrainHook().store
        found = store.events.of_attempt(store.trials.get(trial_id).attempt_id, kinds=(RETURNED,))
        text = joined([event.body for event in found if event.stream == "rank0.events"])
        try:
            return json.loads(text) if text is not None else None
        except (ValueError, RecursionError):
            raise FunctionError(f"Rank 0 of trial {trial_id} sent a result that is not JSON.") from None


#: Defaults of the operator that Airflow needs before a mapped task has an operator.
_OF_MAPPED = {name: inspect.signature(TrialOperator).parameters[name].default for name in ("retries", "retry_delay")}


class DtrainDecorator(_TaskDecorator):  # type: ignore[type-arg]
    """Decorator that gives mapped tasks the operator's defaults, which Airflow's own decorator ignores."""

    def _expand(self, expand_input: ExpandInput, *, strict: bool) -> XComArg:
        check_mapped_call(cast("type[CheckedArguments]", self.operator_class), self.kwargs, expand_input.value)
        mapped = super()._expand(expand_input, strict=strict)
        given: dict[str, Any] = mapped.operator.partial_kwargs  # type: ignore[attr-defined]
        for name, default in _OF_MAPPED.items():
            # The given arguments include the DAG's default_args.
            given.setdefault(name, default)
        return mapped


def dtrain_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Make a task of a function that runs as the ranks of a gang.

    Only the function's own lines are sent to the hosts, so put imports inside it. Its arguments and the value that it
    returns on rank 0 must be JSON.

    :param kwargs: ``config``, ``template``, ``slots``, ``host_pool``, ``environment``, ``allocation``, and the
        arguments of every task; ``pool`` is Airflow's
    """
    if python_callable is not None and not callable(python_callable):
        raise TypeError("@task.dtrain accepts keyword arguments only, e.g. @task.dtrain(slots=2).")

    def decorate(function: Callable[..., Any]) -> TaskDecorator:
        more: dict[str, Any] = {} if multiple_outputs is None else {"multiple_outputs": multiple_outputs}
        decorator = DtrainDecorator(
            function=function, operator_class=DtrainDecoratedOperator, kwargs=dict(kwargs), **more
        )
        return cast("TaskDecorator", decorator)

    return cast("TaskDecorator", decorate) if python_callable is None else decorate(python_callable)
