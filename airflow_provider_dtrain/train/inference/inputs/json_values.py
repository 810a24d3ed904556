"""Columns of JSON values: the types that hold them, and their conversion without a change of any value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from airflow_provider_dtrain.train.inference.column_types import JsonText, type_text
from airflow_provider_dtrain.train.inference.inputs.text_types import JSON

#: Up to this size, floats hold all integers.
FLOAT_INTEGERS = 1 << 53
#: A number of at most this many characters, without an exponent, has a float of the same value.
SHORT_NUMBER = 16
_NUMBER = re.compile(r"-?(?:\d[\d.]*(?:[eE][+-]?\d+)?|Infinity)|NaN")


def guessed(values: Sequence[Any]) -> str:
    """Return the type of a column for the processor: of numbers or booleans, else ``json``. ``null``: it has no value.

    The processor gets other values as Python's, whatever they are.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return "null"
    if kinds == {bool}:
        return "bool"
    if kinds == {int} and all(value is None or -(1 << 63) <= value < 1 << 63 for value in values):
        return "int64"
    if float in kinds and kinds <= {int, float} and all(map(_has_float, values)):
        return "float64"
    return JSON


def guessed_exact(values: Sequence[Any], texts: Sequence[str | None]) -> str:
    """Return the type that holds values exactly where they are passed through, ``json`` if no other type does."""
    try:
        kind = pa.array(values).type
        as_type(values, texts, kind, is_exact=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return JSON
    text = type_text(kind)
    # A later object may have other fields, and a later list items of another type.
    return JSON if "struct<" in text or "null>" in text else text


def as_type(values: Sequence[Any], texts: Sequence[str | None], kind: pa.DataType, *, is_exact: bool) -> pa.Array:
    """Return JSON values in a type.

    :param texts: the values as they were written; None where the field is missing
    :param is_exact: no value may change. False: the user has declared the type, so that numbers may be rounded, and a
        text may be the JSON of another value
    :raises pyarrow.ArrowException, TypeError, ValueError, OverflowError: a value does not fit
    """
    types = pa.types
    if isinstance(kind, JsonText):
        # A line break can only be between the tokens of a value.
        present = [None if value is None else text for value, text in zip(values, texts)]
        lines = [None if text is None else text.replace("\r", " ") for text in present]
        return pa.ExtensionArray.from_storage(kind, pa.array(lines, pa.string()))
    if types.is_boolean(kind) or types.is_integer(kind):
        _require(values, kind, lambda value: type(value) is (bool if types.is_boolean(kind) else int))
    elif types.is_floating(kind):
        _require(values, kind, lambda value: type(value) in (int, float) and (not is_exact or _has_float(value)))
        values = [None if value is None else float(value) for value in values]
    elif types.is_nested(kind):
        _require(values, kind, lambda value: _fits(value, kind))
    elif not types.is_null(kind):
        if is_exact:
            _require(values, kind, lambda value: isinstance(value, str))
        values = [value if value is None or isinstance(value, str) else text for value, text in zip(values, texts)]
        return pa.array(values, pa.string()).cast(kind)
    if is_exact and "float" in type_text(kind):
        _require(zip(values, texts), kind, lambda pair: pair[0] is None or _is_held(*pair))
    return pa.array(values, kind)


def _require(values: Iterable[Any], kind: pa.DataType, fits: Callable[[Any], bool]) -> None:
    if not all(value is None or fits(value) for value in values):
        raise pa.ArrowInvalid(f"a value is no {type_text(kind)}")


def _has_float(value: Any) -> bool:
    return not isinstance(value, int) or abs(value) <= FLOAT_INTEGERS


def _is_held(value: Any, text: str) -> bool:
    """Return whether floats hold the numbers of a JSON value exactly: no digit is lost, and none is infinite."""
    if len(text) <= SHORT_NUMBER and isinstance(value, float) and math.isfinite(value) and "e" not in text.lower():
        return True
    if json.dumps(value) == text:
        return True
    return all(Decimal(repr(float(one))) == Decimal(one) or one == "NaN" for one in _NUMBER.findall(text))


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Return whether a value is of a nested type. pyarrow itself would cut fractions, and drop fields."""
    if value is None:
        return True
    if pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        is_known = isinstance(value, dict) and value.keys() <= fields.keys()
        return is_known and all(_fits(inner, fields[name]) for name, inner in value.items())
    if pa.types.is_map(kind):
        return isinstance(value, dict) and all(_fits(inner, kind.item_type) for inner in value.values())
    if pa.types.is_nested(kind):
        return isinstance(value, list) and all(_fits(inner, kind.value_type) for inner in value)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return type(value) is (bool if pa.types.is_boolean(kind) else int)
    if pa.types.is_floating(kind):
        return type(value) in (int, float) and _has_float(value)
    return isinstance(value, str) or not pa.types.is_string(kind)
