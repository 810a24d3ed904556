"""Types of output columns as texts, such as ``int64``, ``list<float32>`` and ``float32[3,224]``."""

from __future__ import annotations

import math
import re
from functools import lru_cache

import pyarrow as pa

from airflow_provider_dtrain.train.errors import SchemaError

#: Name of a type -> type, for declared types.
SCALARS = {
    "bool": pa.bool_(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us"), "null": pa.null(),
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(),
    "float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64(),
}  # fmt: skip
#: Arrow's own names of types that are written differently here.
NAMES = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64", pa.date32(): "date"}
_SHAPE = re.compile(r"(.+)\[(\d+(?:,\s*\d+)*)\]")
_LIST = re.compile(r"list<(.+)>")
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")


@lru_cache(maxsize=1024)
def type_text(kind: pa.DataType) -> str:
    """Return the text of a type. Nested lists of fixed sizes are one shape."""
    shape = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(str(kind.list_size))
        kind = kind.value_type
    if shape:
        return f"{type_text(kind)}[{','.join(shape)}]"
    if pa.types.is_list(kind):
        return f"list<{type_text(kind.value_type)}>"
    return NAMES.get(kind, str(kind))


#: Longest text of a declared type, and most values of a tensor in one row.
TEXT_LIMIT, VALUES_LIMIT = 200, 2**31 - 1


def parse_type(text: str) -> pa.DataType:
    """Return the type of a text.

    :raises SchemaError: the text names no type
    """
    if len(text) > TEXT_LIMIT:
        raise SchemaError(f"A type in outputs.schema must have at most {TEXT_LIMIT} characters, got {text[:40]!r}...")
    if text in SCALARS:
        return SCALARS[text]
    if match := _SHAPE.fullmatch(text):
        sizes = [int(size) for size in match[2].split(",")]
        if not 0 < math.prod(sizes) <= VALUES_LIMIT:
            raise SchemaError(f"The sizes of {text!r} in outputs.schema must be from 1 on, with a product below 2^31.")
        kind = parse_type(match[1].strip())
        for size in reversed(sizes):
            kind = pa.list_(kind, size)
        return kind
    if match := _LIST.fullmatch(text):
        return pa.list_(parse_type(match[1].strip()))
    if match := _DECIMAL.fullmatch(text):
        return _decimal(text, int(match[1]), int(match[2]))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        raise SchemaError(
            f"{text!r} in outputs.schema is no type. Types are {', '.join(sorted(SCALARS))}, list<T>, "
            "and T[3,224] for tensors."
        ) from None


def _decimal(text: str, precision: int, scale: int) -> pa.DataType:
    try:
        return pa.decimal128(precision, scale)
    except (ValueError, OverflowError) as error:
        raise SchemaError(f"{text!r} in outputs.schema is no type: {error}") from error


def converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in another type, if no value changes its meaning.

    Numbers become other numbers, and lists of a fixed size become lists.

    :raises pyarrow.ArrowInvalid: the types do not fit, or a value would be cut
    """
    if column.type == kind:
        return column
    if not _fits(column.type, kind):
        raise pa.ArrowInvalid(f"{type_text(column.type)} is no {type_text(kind)}")
    return column.cast(kind)


def _fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    lists = (pa.types.is_list, pa.types.is_fixed_size_list)
    if any(test(kind) for test in lists) and any(test(wanted) for test in lists):
        return _fits(kind.value_type, wanted.value_type)
    return _family(kind) == _family(wanted)


def _family(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    return "time" if types.is_timestamp(kind) or types.is_date(kind) else type_text(kind)
