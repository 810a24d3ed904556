"""``@task.dtrain_batch``: a Python function that processes the batches of an inference on a gang."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk.bases.decorator import DecoratedOperator

from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.decorators._function import check_function, read_function
from airflow_provider_dtrain.decorators._payload import FOLDER, call_of, code_with
from airflow_provider_dtrain.decorators.dtrain import DtrainDecorator
from airflow_provider_dtrain.errors import FunctionError
from airflow_provider_dtrain.hooks.arguments import LIST, MAP, Kind
from airflow_provider_dtrain.hooks.tasks import log_mistaken_pool
from airflow_provider_dtrain.operators.inference import BatchInferenceOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.hooks.tasks import TaskFacts
    from airflow_provider_dtrain.store.records.trials import Ticket

#: Module of the payload whose function gets only the batch.
MODULE = "dtrain_batch"
_LOADER = '''"""The function of a @task.dtrain_batch task with the arguments of its call."""

import json
from pathlib import Path

from airflow_provider_dtrain.train.function import load

_folder = Path(__file__).parent / {folder!r}
_call = json.loads((_folder / "call.json").read_text(encoding="utf-8"))
_function = load(_folder / {file!r}, _call["name"], _call["defaults"])


def {name}(batch):
    return _function(batch, *_call["args"][1:], **_call["kwargs"])
'''
#: The same for a function with the parameter ``ctx``.
_LOADER_WITH_CONTEXT = (
    _LOADER.partition("def {name}")[0]
    + """def {name}(batch, ctx):
    args, kwargs = _call["args"][1:], _call["kwargs"]
    positional = _function.__code__.co_varnames[1 : _function.__code__.co_argcount]
    if "ctx" in positional:
        args = [*args[: positional.index("ctx")], ctx, *args[positional.index("ctx") + 1 :]]
    else:
        kwargs = {{**kwargs, "ctx": ctx}}
    return _function(batch, *args, **kwargs)
"""
)
#: Parameter that gets the context of the inference on the host.
CONTEXT = "ctx"


class DtrainBatchDecoratedOperator(DecoratedOperator, BatchInferenceOperator):
    """Runs a batch inference whose processor is a function of the DAG file.

    The function gets a batch as its first argument and returns its rows. The task's XCom is that of a
    ``BatchInferenceOperator``.

    :param python_callable: the function; its source is sent to the hosts
    :param op_args: positional arguments behind the batch, as JSON (templated)
    :param op_kwargs: keyword arguments, as JSON (templated)
    """

    custom_operator_name = "@task.dtrain_batch"
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *BatchInferenceOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers, **BatchInferenceOperator.template_fields_renderers,
    }  # fmt: skip
    shallow_copy_attrs: Sequence[str] = ("python_callable",)
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {**BatchInferenceOperator.ARGUMENTS, "op_args": LIST, "op_kwargs": MAP}

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        check_batch_function(python_callable)
        # Airflow compares the arguments with the function's parameters. The ranks give the batch and the context.
        given = {CONTEXT: None} if _takes_context(python_callable) else {}
        super().__init__(
            python_callable=python_callable,
            op_args=[None, *(op_args or ())],
            op_kwargs={**(op_kwargs or {}), **given},
            **kwargs,
        )
        self.check_arguments(self.task_id, {"op_args": op_args, "op_kwargs": op_kwargs})
        if self.processor is not None:
            raise FunctionError(
                f"processor is {self.processor!r}, but @task.dtrain_batch runs the function "
                f"{python_callable.__name__}(). Remove processor, or use a BatchInferenceOperator."
            )
        self._context: Context | None = None

    def execute(self, context: Context) -> Any:
        """Run the inference to its end, or defer to the triggerer. Raises like a ``TrialOperator``."""
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
        config = self._configured(folder, held)
        assert config is not None
        stored = render(hook, config, self.template, folder, pool=held.pool if held is not None else None)
        if held is None:
            log_mistaken_pool(self, (stored.document.get("resources") or {}).get("pool"), hook.store)
        template = _LOADER_WITH_CONTEXT if _takes_context(self.python_callable) else _LOADER
        loader = template.format(folder=FOLDER, file=source.file_name, name=source.name)
        files = model_of(stored).environment.files()
        with code_with(source, call, folder, stored.document.get("model_dir"), {f"{MODULE}.py": loader}, files) as root:
            return [self._store(hook, stored, task, gang=gang, folder=root, tree=folder)]

    def _fields(self) -> ConfigDocument:
        return {**super()._fields(), "processor": f"{MODULE}:{self.python_callable.__name__}"}


def _takes_context(function: Callable[..., Any]) -> bool:
    return CONTEXT in inspect.signature(function).parameters


def check_batch_function(function: Callable[..., Any]) -> None:
    """Raise if a function cannot process batches on a host.

    :raises FunctionError: it uses names from outside, or has no parameter for the batch
    """
    check_function(function)
    parameters = list(inspect.signature(function).parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in kinds:
        raise FunctionError(
            f"{function.__name__}() has no parameter for the batch. Its first parameter gets each batch, e.g. "
            f"def {function.__name__}(batch)."
        )


def dtrain_batch_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool = False, **kwargs: Any
) -> TaskDecorator:
    """Make a batch inference of a function that gets a batch and returns its rows.

    Only the function's own lines are sent to the hosts, so put imports inside it. Its first parameter is the batch. A
    parameter ``ctx`` gets the context of the inference, e.g. for ``ctx.load_weights``. The call in the DAG gives the
    other arguments, which must be JSON.

    :param multiple_outputs: whether each key of the result becomes an XCom of its own
    :param kwargs: arguments of a ``BatchInferenceOperator`` except ``processor``
    """
    if python_callable is not None and not callable(python_callable):
        raise TypeError("@task.dtrain_batch accepts keyword arguments only, e.g. @task.dtrain_batch(outputs=...).")

    def decorate(function: Callable[..., Any]) -> TaskDecorator:
        decorator = DtrainDecorator(
            function=function,
            operator_class=DtrainBatchDecoratedOperator,
            multiple_outputs=multiple_outputs,
            kwargs=dict(kwargs),
        )
        return cast("TaskDecorator", decorator)

    return cast("TaskDecorator", decorate) if python_callable is None else decorate(python_callable)
