"""Extraction of a DAG file's function as text: only its own lines and its arguments are sent to hosts."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from airflow_provider_dtrain.core.documents import JsonObject
from airflow_provider_dtrain.errors import FunctionError

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_STORES = frozenset({"STORE_GLOBAL", "STORE_NAME"})
#: Names that every module defines.
_OF_MODULES = frozenset({"__name__", "__file__", "__doc__", "__builtins__", "__module__", "__qualname__"})


@dataclass(frozen=True)
class FunctionSource:
    """Source of a function, with the line numbers of its file."""

    name: str
    #: Name of the file that contains the function.
    file_name: str
    text: str


def read_function(function: Callable[..., Any]) -> FunctionSource:
    """Return a function's source.

    :raises FunctionError: the function cannot run on a host; the message names the missing names
    """
    check_function(function)
    name = function.__name__
    try:
        lines, first = inspect.getsourcelines(function)
        file_name = Path(inspect.getsourcefile(function) or "function.py").name
    except (OSError, TypeError) as error:
        raise FunctionError(f"The source of {name}() cannot be read ({error}). Define it with def in a file.") from None
    # The source is not dedented: that would change multi-line strings in the function.
    is_indented = lines[0][:1].isspace()
    tree = ast.parse("if True:\n" + "".join(lines) if is_indented else "\n" + "".join(lines))
    node = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    own = "".join(lines[node.lineno - 2 : (node.end_lineno or node.lineno) - 1])
    above = first + node.lineno - 3
    padding = "\n" * (above - 1) + "if True:\n" if is_indented else "\n" * above
    return FunctionSource(name, file_name, padding + own + "\n")


def check_function(function: Callable[..., Any]) -> None:
    """Raise if a function cannot run from its own lines alone.

    :raises FunctionError: it is not a plain function, or uses names from outside; the message lists all of them
    """
    name = getattr(function, "__name__", repr(function))
    if not inspect.isfunction(function) or name == "<lambda>":
        raise FunctionError(f"@task.dtrain expects a function defined with def, got {function!r}.")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise FunctionError(f"{name}() is async, but ranks run plain functions. Use def instead of async def.")
    if inspect.isgeneratorfunction(function):
        raise FunctionError(f"{name}() yields, but ranks run plain functions. Use return instead of yield.")
    if hasattr(function, "__wrapped__"):
        raise FunctionError(
            f"{name}() has another decorator below @task.dtrain, which cannot be sent to the hosts. Remove it."
        )
    if enclosed := sorted(function.__code__.co_freevars):
        raise FunctionError(f"{name}() uses {_names(enclosed)} of the enclosing function. {_PUT_INSIDE}")
    if foreign := sorted(set(_foreign(function))):
        raise FunctionError(f"{name}() uses {_names(foreign)} from outside the function. {_PUT_INSIDE}")


_PUT_INSIDE = (
    "Only the function's own lines are sent to the hosts: import and define these names inside it, or pass the values "
    "as arguments."
)


def bind(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> JsonObject:
    """Return a call as plain JSON: ``name``, ``args``, ``kwargs`` and the values of the parameters' ``defaults``.

    :raises FunctionError: an argument is missing, unknown, or not JSON; the message names it
    """
    from airflow_provider_dtrain.train.function import plain_json

    signature = inspect.signature(function)
    name = function.__name__
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise FunctionError(f"{name}() cannot be called with these arguments: {error}.") from None
    bound.apply_defaults()
    try:
        for argument, value in bound.arguments.items():
            bound.arguments[argument] = _kept(
                signature.parameters[argument], plain_json(value, f"argument '{argument}'")
            )
    except (ValueError, RecursionError) as error:
        raise FunctionError(f"{name}() cannot be called on a host: {error}") from None
    return {
        "name": name,
        "args": list(bound.args),
        "kwargs": dict(bound.kwargs),
        "defaults": dict(_defaults(signature)),
    }


def _kept(parameter: inspect.Parameter, value: Any) -> Any:
    return tuple(value) if parameter.kind is inspect.Parameter.VAR_POSITIONAL else value


def _defaults(signature: inspect.Signature) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of the parameters, with None for those that are not JSON.

    The call itself does not need them.
    """
    from airflow_provider_dtrain.train.function import plain_json

    for name, parameter in signature.parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            try:
                yield name, plain_json(parameter.default, name)
            except (ValueError, RecursionError):
                yield name, None


def _foreign(function: Any) -> Iterator[str]:
    """Yield the names that the function's code uses but that neither it nor Python itself defines."""
    codes = list(_codes(function.__code__))
    stored = {name for code in codes for name in _operands(code, _STORES)}
    for code in codes:
        for name in _operands(code, _LOADS):
            is_own = name in stored or name in _OF_MODULES or name == function.__name__
            if not is_own and (name in function.__globals__ or not hasattr(builtins, name)):
                yield name


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _operands(code: CodeType, opnames: frozenset[str]) -> Iterator[str]:
    return (str(step.argval) for step in dis.get_instructions(code) if step.opname in opnames)


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
