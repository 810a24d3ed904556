"""Parts in JSON lines: one object per row."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import logging
import math
from typing import Any, BinaryIO

import pyarrow as pa

from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions

log = logging.getLogger(__name__)

#: Characters at which some readers end a line, although JSON does not escape them.
LINE_ENDS = str.maketrans({char: f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"})


class JsonLinesEncoder:
    """Writes record batches as JSON lines.

    Bytes become base64, times ISO 8601, decimals texts. JSON has no NaN and no infinity: they become null.
    """

    def __init__(self, file: BinaryIO, options: OutputOptions) -> None:
        self._file = file
        self._options = options
        self._schema = pa.schema([])

    def write(self, table: pa.RecordBatch) -> None:
        """Write rows at once."""
        self._schema = table.schema
        rows = pa.Table.from_batches([_for_python(table)]).to_pylist()
        self._file.write("".join(f"{self._line(row)}\n" for row in rows).translate(LINE_ENDS).encode())

    def close(self) -> pa.Schema:
        """Return the schema of the last rows."""
        return self._schema

    def _line(self, row: dict[str, Any]) -> str:
        try:
            return json.dumps(row, allow_nan=False, ensure_ascii=False, default=_plain)
        except ValueError:
            self._say_once()
            return json.dumps(_finite(row), allow_nan=False, ensure_ascii=False, default=_plain)

    def _say_once(self) -> None:
        if "nan" not in self._options.notes:
            self._options.notes.add("nan")
            log.warning("NaN and infinite numbers are written as null, because JSON has neither.")


def _for_python(table: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose values Python can hold: its times have no nanoseconds."""
    columns = [
        column.cast(pa.string()) if pa.types.is_timestamp(column.type) and column.type.unit == "ns" else column
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=table.schema.names)


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
