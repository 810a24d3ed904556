"""The one decoder of answers: JSON of a server becomes records whose fields have the types that the records declare.

A server is another machine, so nothing in its answers is taken as given: each value has the declared type, each text
and number a bound, and the nesting of free values a limit. Fields that this client does not know are ignored.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, TypeVar

from airflow_provider_dtrain.core.untrusted_json import UntrustedInputError, check_size
from airflow_provider_dtrain.errors import ServerError
from airflow_provider_dtrain.resources.bounds import Between

Record = TypeVar("Record")
#: Reads a value, or raises :class:`_WrongError`.
_Reader = Callable[[Any], Any]

_OTHER_VERSION = "Install the server's version: pip install airflow-provider-dtrain==VERSION"
#: Most characters of a text. The output of a command has up to 1 MiB.
TEXT_MOST: Final = 8 << 20
#: Most bits of an integer without a bound of its own, and of one in a free value, as configurations accept it.
_BITS, _FREE_BITS = 63, 1329
#: Values of a field that an error names.
_CHOICES_SHOWN: Final = 12
#: Levels of an answer. A configuration has 64, and its values are inside of other maps.
_LEVELS: Final = 100
#: Values of an answer. Five thousand reports of a thousand metrics each have as many.
_VALUES: Final = 5_000_000


class _WrongError(Exception):
    """A value is of another form. Its text begins with the place and names no value of the server."""


class Answer:
    """JSON of an answer. Its content is only available as records."""

    def __init__(self, content: bytes) -> None:
        try:
            # A MiB of "{},{}," takes 70 MiB as objects.
            check_size(content, depth=_LEVELS, values=_VALUES)
            self._value = json.loads(content, parse_constant=_no_constant)
        except UntrustedInputError as error:
            raise ServerError(f"The answer is too large: {error}.") from None
        except ValueError:
            raise ServerError("The answer is no JSON. Is the URL that of an Airflow API server?") from None

    def record(self, kind: type[Record]) -> Record:
        """Return the answer as a record.

        :raises ServerError: a field is missing, or its value is of another type or out of bounds
        """
        return record(kind, self._value)


def record(kind: type[Record], value: Any) -> Record:
    """Return a record from a JSON object.

    :raises ServerError: a field is missing, or its value is of another type or out of bounds
    """
    found: Record = _read(kind, kind.__name__, value)
    return found


def _read(kind: Any, name: str, value: Any) -> Any:
    try:
        return _reader(kind)(value)
    except _WrongError as error:
        raise ServerError(f"The server sent a {name} of another form: {error}. {_OTHER_VERSION}") from None


@cache
def _reader(kind: Any) -> _Reader:
    """Return the function that reads values of a type.

    :raises TypeError: the type has no form in JSON that this decoder knows
    """
    if dataclasses.is_dataclass(kind):
        return _object_reader(kind)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _bounded_reader(parts[0], *parts[1:])
    if origin in (types.UnionType, typing.Union):
        return _union_reader(parts)
    if origin is list:
        return _list_reader(_reader(parts[0]))
    if origin in (dict, Mapping) and parts[0] is str:
        return _map_reader(_reader(parts[1]))
    if origin is typing.Literal:
        return _choice_reader(parts)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _enum_reader(kind)
    if (found := _SCALARS.get(kind)) is None:
        raise TypeError(f"{kind!r} cannot be decoded")
    return found


def _object_reader(kind: Any) -> _Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [
        (
            one.name,
            _reader(hints[one.name]),
            one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING,
        )
        for one in dataclasses.fields(kind)
    ]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _WrongError(f"an object is expected, got {_kind_of(value)}")
        found = {}
        for name, reader, is_optional in fields:
            if name in value:
                found[name] = _at(name, reader, value[name])
            elif not is_optional:
                raise _WrongError(f"it has no field {name}")
        return kind(**found)

    return read


def _list_reader(part: _Reader) -> _Reader:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _WrongError(f"a list is expected, got {_kind_of(value)}")
        return [_at(number, part, one) for number, one in enumerate(value)]

    return read


def _map_reader(part: _Reader) -> _Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _WrongError(f"an object is expected, got {_kind_of(value)}")
        return {_text(name): _at("an entry", part, one) for name, one in value.items()}

    return read


def _union_reader(parts: tuple[Any, ...]) -> _Reader:
    """Return the reader of a union. Its parts have different forms in JSON, except that an integer is also a float."""
    readers = [_reader(one) for one in sorted(parts, key=lambda one: one is float)]

    def read(value: Any) -> Any:
        wrong = ""
        for reader in readers:
            try:
                return reader(value)
            except _WrongError as error:
                wrong = wrong or str(error)
        raise _WrongError(wrong)

    return read


def _bounded_reader(kind: Any, *marks: Any) -> _Reader:
    reader = _reader(kind)
    bounds = [one for one in marks if isinstance(one, Between)]

    def read(value: Any) -> Any:
        found = reader(value)
        if not all(one.low <= found <= one.high for one in bounds):
            raise _WrongError("a number is out of its bounds")
        return found

    return read


def _choice_reader(choices: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            more = ", ..." if len(choices) > _CHOICES_SHOWN else ""
            raise _WrongError(f"one of {', '.join(choices[:_CHOICES_SHOWN])}{more} is expected")
        return value

    return read


def _enum_reader(kind: type[StrEnum]) -> _Reader:
    choice = _choice_reader(tuple(kind))
    return lambda value: kind(choice(value))


def _at(place: str | int, reader: _Reader, value: Any) -> Any:
    try:
        return reader(value)
    except _WrongError as error:
        raise _WrongError(f"{place}: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _WrongError(f"a text is expected, got {_kind_of(value)}")
    if len(value) > TEXT_MOST:
        raise _WrongError(f"a text of {len(value)} characters is too long, at most {TEXT_MOST} are accepted")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _WrongError("a text has half of a character") from None
    return value


def _integer(value: Any, bits: int = _BITS) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _WrongError(f"an integer is expected, got {_kind_of(value)}")
    if value.bit_length() > bits:
        raise _WrongError("an integer is too large")
    return value


def _number(value: Any) -> float:
    if isinstance(value, float):
        # JSON has no infinity, but 1e999 is read as one.
        if value - value != 0:
            raise _WrongError("a number is too large")
        return value
    return float(_integer(value))


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongError(f"true or false is expected, got {_kind_of(value)}")
    return value


def _nothing(value: Any) -> None:
    if value is not None:
        raise _WrongError(f"null is expected, got {_kind_of(value)}")


def _moment(value: Any) -> datetime:
    try:
        found = datetime.fromisoformat(_text(value))
        if found.tzinfo is None:
            raise _WrongError("a time has no zone")
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _WrongError("a text is no time") from None


def _free(value: Any) -> Any:
    """Return a value of any form, for instance that of a hyperparameter. The nesting was checked before."""
    if isinstance(value, dict):
        return {_text(name): _free(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_free(one) for one in value]
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return _number(value)
    return value if value is None or isinstance(value, bool) else _integer(value, _FREE_BITS)


_SCALARS: dict[Any, _Reader] = {
    str: _text,
    int: _integer,
    float: _number,
    bool: _truth,
    types.NoneType: _nothing,
    datetime: _moment,
    Any: _free,
}


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
