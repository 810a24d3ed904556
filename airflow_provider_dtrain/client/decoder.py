"""Records from JSON, by the types of their fields. Fields that this client does not know are ignored."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

from airflow_provider_dtrain.errors import ServerError

Record = TypeVar("Record")
_OTHER_VERSION = "Install the server's version: pip install airflow-provider-dtrain==VERSION"


class Received(dict[str, Any]):
    """A JSON object of an answer.

    :raises ServerError: on access to a field that it does not have
    """

    def __missing__(self, name: str) -> Any:
        raise ServerError(f"The server sent an answer without a field {name}. {_OTHER_VERSION}")


def answer_of(content: bytes) -> Any:
    """Return the JSON of an answer, with :class:`Received` for objects.

    :raises ServerError: it is no JSON, or neither an object nor null
    """
    try:
        found = json.loads(content, object_hook=Received)
    except (ValueError, RecursionError):
        raise ServerError("The answer is no JSON. Is the URL that of an Airflow API server?") from None
    if not isinstance(found, Received | None):
        raise ServerError("The answer is no JSON object. Is the URL that of an Airflow API server?")
    return Received() if found is None else found


def record(kind: type[Record], value: Any) -> Record:
    """Return a record from a JSON object.

    :raises ServerError: a field is missing, or its value is of another type
    """
    found = _decoded(kind, value)
    assert isinstance(found, kind)
    return found


def records(kind: type[Record], values: Any) -> list[Record]:
    """Return records from a JSON list.

    :raises ServerError: it is none
    """
    if not isinstance(values, list):
        raise _unexpected(kind, "a list")
    return [record(kind, one) for one in values]


def _decoded(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _of_class(kind, value)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        # Only one part of a union has a form of its own.
        parts = [one for one in typing.get_args(kind) if one is datetime or dataclasses.is_dataclass(one)]
        return _decoded(parts[0], value) if parts else value
    if origin is list:
        if not isinstance(value, list):
            raise _unexpected(kind, "a list")
        (part,) = typing.get_args(kind)
        return [_decoded(part, one) for one in value]
    if kind is datetime:
        return _moment(value)
    return value


def _of_class(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise _unexpected(kind, "an object")
    found = {}
    for name, (of, is_optional) in _fields(kind).items():
        if name in value:
            found[name] = _decoded(of, value[name])
        elif not is_optional:
            raise _unexpected(kind, f"a field {name}")
    return kind(**found)


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    hints = typing.get_type_hints(kind)
    return {
        one.name: (
            hints[one.name],
            one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING,
        )
        for one in dataclasses.fields(kind)
    }


def _moment(value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ServerError(f"The server sent a time that is none: {str(value)[:50]!r}.") from None


def _unexpected(kind: Any, expected: str) -> ServerError:
    name = getattr(kind, "__name__", str(kind))
    return ServerError(f"The server sent a {name} without {expected}. {_OTHER_VERSION}")
