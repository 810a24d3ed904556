"""Parts in JSON lines: one object per row."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_dtrain.train.errors import SchemaError
from airflow_provider_dtrain.train.inference.column_types import JsonText
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions
from airflow_provider_dtrain.train.inference.plain_types import with_inner
from airflow_provider_dtrain.train.values import JsonObject

log = logging.getLogger(__name__)

#: Characters at which some readers end a line, although JSON does not escape them.
LINE_ENDS = str.maketrans({char: f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"})


class JsonLinesEncoder:
    """Writes record batches as JSON lines.

    Bytes become base64, times ISO 8601, decimals texts. JSON has no NaN and no infinity: they become null. JSON that
    is passed through is written as it was read.
    """

    def __init__(self, file: BinaryIO, options: OutputOptions) -> None:
        self._file = file
        self._options = options
        self._schema = pa.schema([])

    def write(self, table: pa.RecordBatch) -> None:
        """Write rows at once."""
        self._schema = table.schema
        names = [field.name for field in table.schema if isinstance(field.type, JsonText)]
        lines = list(map(self._line, _rows(table, names)))
        if names:
            texts = [table.column(name).storage.to_pylist() for name in names]
            keys = [f"{json.dumps(name, ensure_ascii=False)}: " for name in names]
            lines = [_with_texts(keys, values, line) for line, *values in zip(lines, *texts)]
        self._file.write("".join(f"{line}\n" for line in lines).translate(LINE_ENDS).encode())

    def close(self) -> pa.Schema:
        """Return the schema of the last rows."""
        return self._schema

    def _line(self, row: JsonObject) -> str:
        try:
            return json.dumps(row, allow_nan=False, ensure_ascii=False, default=_plain)
        except ValueError:
            self._warn_once()
            return json.dumps(_finite(row), allow_nan=False, ensure_ascii=False, default=_plain)

    def _warn_once(self) -> None:
        if "nan" not in self._options.notes:
            self._options.notes.add("nan")
            log.warning("NaN and infinite numbers are written as null, because JSON has neither.")


def _rows(table: pa.RecordBatch, left_out: Sequence[str]) -> Iterator[JsonObject]:
    """Yield rows as Python's values.

    :raises SchemaError: Python has no such value, as of a date after the year 9999
    """
    names = [name for name in table.schema.names if name not in left_out]
    columns = []
    for name in names:
        try:
            columns.append(_for_python(table.column(name)).to_pylist())
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise SchemaError(
                f"Column {name!r} has a value that JSON lines cannot hold: {error}. Set outputs.format: parquet, or "
                "leave the column out."
            ) from error
    return (dict(zip(names, values)) for values in zip(*columns)) if names else iter([{}] * table.num_rows)


def _for_python(column: pa.Array) -> pa.Array:
    """Return a column whose values Python can hold: its times have no nanoseconds.

    :raises pyarrow.ArrowInvalid: a duration has nanoseconds
    """
    kind = _without_nanoseconds(column.type)
    if kind == column.type:
        return column
    found = column.cast(kind)
    return pc.replace_substring(found, " ", "T", max_replacements=1) if pa.types.is_timestamp(column.type) else found


def _without_nanoseconds(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_duration(kind):
        return pa.duration("us") if kind.unit == "ns" else kind
    if types.is_timestamp(kind) or types.is_time64(kind):
        return pa.string() if kind.unit == "ns" else kind
    return with_inner(kind, _without_nanoseconds)


def _with_texts(keys: Sequence[str], values: Sequence[str | None], line: str) -> str:
    """Return the line of an object with fields whose values are JSON already."""
    fields = ", ".join(f"{key}{'null' if value is None else value}" for key, value in zip(keys, values))
    return f"{{{fields}}}" if line == "{}" else f"{{{fields}, {line[1:]}"


def _plain(value: Any) -> Any:
    """Return a JSON value for a Python value that JSON does not have."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    # Early versions of pyarrow return numpy's half-precision numbers.
    return _finite(float(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value
