"""Arguments of operators and sensors, checked when the DAG file is read.

A wrong value is an import error that names its path. Without it, the task would fail later, and a value that Airflow
cannot send from one of its processes to another would remove the DAG without any error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.definitions.mappedoperator import OperatorPartial

from airflow_provider_dtrain.core.safe_repr import is_jinja, shown
from airflow_provider_dtrain.errors import ConfigError, Problem

if TYPE_CHECKING:
    from airflow.sdk.definitions._internal.expandinput import ExpandInput
    from airflow.sdk.definitions.mappedoperator import MappedOperator

#: Returns what is accepted if a value is not of a kind, else None.
Kind = Callable[[Any], str | None]
#: Stands for a value that Airflow renders or resolves when the task runs.
UNKNOWN = "{{ }}"


def of(message: str, *types: type) -> Kind:
    """Return the kind of values that have one of these types. A boolean is no number.

    :param message: what is accepted, for messages
    """

    def check(value: Any) -> str | None:
        is_kind = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        return None if is_kind else message

    return check


TEXT = of("a text", str)
FLAG = of("True or False", bool)
MAP = of("a map", Mapping)
DOCUMENT = of("a path, YAML text or a map", str, os.PathLike, Mapping)
PLACE = of("a path, a URL or a map", str, os.PathLike, Mapping)
PATHS = of("a path, a list of paths or a map", str, os.PathLike, list, tuple, Mapping)
LIST = of("a list", list, tuple)
#: A template renders to a text, so a text with a number is one.
COUNT = of("a number, or a text with one", int, str)


def SECONDS(value: Any) -> str | None:  # noqa: N802 - a kind like the others
    """Return what is accepted unless the value is a time in seconds."""
    if isinstance(value, timedelta):
        return None
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    return None if seconds >= 0 and math.isfinite(seconds) else "a timedelta or a number of seconds from 0 on"


class CheckedArguments:
    """Base class of operators and sensors that check their arguments, also those of mapped tasks."""

    #: Argument -> its kind.
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {}

    @classmethod
    def documents(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """Yield the documents among the arguments: name, document, and whether it is a template.

        :param given: arguments whose values are known
        """
        return iter(())

    @classmethod
    def check_arguments(cls, task_id: str | None, given: Mapping[str, Any]) -> None:
        """Raise unless all arguments are valid, as far as they are known now.

        :raises ConfigError: names the task, and each problem with its path
        """
        known = {name: value for name, value in given.items() if name in cls.ARGUMENTS and value is not None}
        problems = [problem for name, value in known.items() for problem in _problems(name, value, cls.ARGUMENTS[name])]
        if not problems:
            for name, document, is_template in cls.documents(known):
                problems += _of_document(name, document, is_template=is_template)
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)), source=f"{cls.__name__} {task_id!r}")

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return the task without its mapped arguments."""
        made: OperatorPartial = super().partial(**kwargs)  # type: ignore[misc]
        made._expand_called = True  # the copy is mapped instead
        cls.check_arguments(kwargs.get("task_id"), made.kwargs)
        return CheckedPartial(operator_class=made.operator_class, kwargs=made.kwargs, params=made.params)


class CheckedPartial(OperatorPartial):
    """Task without its mapped arguments, which checks those that the DAG file lists."""

    def _expand(self, expand_input: ExpandInput, *, strict: bool) -> MappedOperator:
        kind: Any = self.operator_class
        for given in _each(expand_input.value):
            kind.check_arguments(self.kwargs.get("task_id"), given)
        return super()._expand(expand_input, strict=strict)


def check_mapped_call(kind: type[CheckedArguments], given: Mapping[str, Any], calls: Any) -> None:
    """Raise unless a decorated function and the calls that the DAG file lists have valid arguments.

    :param kind: class of the operator
    :param given: arguments of the operator
    :param calls: arguments of the function, as Airflow maps them
    :raises ConfigError: names the task, and each problem with its path
    """
    kind.check_arguments(given.get("task_id"), given)
    for call in _each(calls):
        kind.check_arguments(given.get("task_id"), {"op_kwargs": call})


def _each(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the mapped arguments that the DAG file lists. Others are known when the task runs."""
    if isinstance(value, Mapping):
        for name, items in value.items():
            yield from ({name: item} for item in items) if isinstance(items, (list, tuple)) else ()
    elif isinstance(value, (list, tuple)):
        yield from (item for item in value if isinstance(item, Mapping))


def configured(given: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the configuration among arguments, with its overrides, and the template: name, document, is it a template.

    The contents of files are not known: they may change until the task runs.
    """
    from airflow_provider_dtrain.core.config.forms import is_path_like, is_rendered

    config, template, overrides = (given.get(name) for name in ("config", "template", "overrides"))
    if isinstance(template, Mapping):
        yield "template", template, True
    is_text = isinstance(config, str) and not is_jinja(config) and not is_path_like(config)
    if is_text or (isinstance(config, Mapping) and not is_rendered(config)):
        yield "config", config, False
    if isinstance(overrides, Mapping) and overrides:
        # Most tasks have none.
        from airflow_provider_dtrain.core.config.overrides import with_overrides

        yield "overrides", with_overrides({}, known(overrides)), False


def text_of_path(value: Any) -> Any:
    """Return a path as text, and any other value as it is."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def is_unknown(value: Any) -> bool:
    """Return whether Airflow renders or resolves a value when the task runs: a template, an XCom, a parameter."""
    return is_jinja(value) or (callable(getattr(value, "resolve", None)) and hasattr(value, "iter_references"))


def known(value: Any) -> Any:
    """Return a value with :data:`UNKNOWN` for everything in it that only the run knows."""
    return _known(value, 0)


def _known(value: Any, depth: int) -> Any:
    if is_unknown(value):
        return UNKNOWN
    # Deeper values are refused, so they may be anything.
    if depth > 100:
        return value
    if isinstance(value, Mapping):
        return {name: _known(item, depth + 1) for name, item in value.items()}
    return [_known(item, depth + 1) for item in value] if isinstance(value, (list, tuple)) else value


def _problems(name: str, value: Any, kind: Kind) -> list[Problem]:
    if is_unknown(value):
        return []
    expected = kind(value)
    if expected is not None:
        return [Problem(path=name, message=f"must be {expected}, got {shown(value)}")]
    if isinstance(value, (timedelta, os.PathLike)):
        return []
    from airflow_provider_dtrain.core.config.yaml_reader import check_shape

    return check_shape({name: known(value)}, is_argument=True)


def _of_document(name: str, value: Any, *, is_template: bool) -> list[Problem]:
    """Return the problems of a configuration that do not depend on what only the run knows."""
    from airflow_provider_dtrain.core.config.assembly import validate_partial
    from airflow_provider_dtrain.core.config.yaml_reader import load_yaml

    try:
        document = load_yaml(value) if isinstance(value, str) else known(value)
        validate_partial(document, template=is_template)
    except ConfigError as error:
        source = {} if isinstance(value, str) else document
        found = [problem for problem in error.problems if not _is_unknown_at(source, problem.path)]
        return [Problem(path=_path(name, one.path), message=one.message) for one in found]
    return []


def _path(name: str, path: str) -> str:
    """Return the path of a problem as the arguments have it."""
    if not name:
        section, _, field = path.partition(".")
        return _ARGUMENT_OF.get(path, field if section == "inference" and field else path)
    return f"{name}.{path}" if path else name


#: Field of a configuration -> the argument that gives it.
_ARGUMENT_OF = {"resources.slots_per_trial": "slots", "resources.pool": "host_pool", "resources.priority": "priority"}


def _is_unknown_at(document: Any, path: str) -> bool:
    """Return whether the value at a path, one above it or one below it is not known yet."""
    node = document
    for part in filter(None, path.split(".")):
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, Sequence) and not isinstance(node, str) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        else:
            # The field has another name in the document, or is missing.
            break
    return _holds_unknown(node)


def _holds_unknown(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_unknown, value.values()))
    return any(map(_holds_unknown, value)) if isinstance(value, list) else is_jinja(value)
