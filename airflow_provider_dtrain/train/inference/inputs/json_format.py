"""JSON lines as input: one object per line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.inputs.text_tables import Start

#: Lines that decide the types of a file's columns.
FIRST_LINES = 1000
#: Most lines and bytes that are converted at a time.
PIECE_LINES, PIECE_BYTES = 4096, 4 * 1024 * 1024
#: Longest line, so that a file of another format does not fill the memory.
LINE_BYTES = 64 * 1024 * 1024


class JsonFormat:
    """Parses JSON lines. Fields that are missing in a line are null."""

    name = "JSON lines"

    def __init__(self, settings: InputSettings) -> None:
        self._settings = settings

    def start(self, path: str, stream: pa.NativeFile) -> Start:
        """Return the fields of the first lines."""
        rows = [row for _, row, _ in islice(_rows(path, stream), FIRST_LINES)]
        names = list(dict.fromkeys(name for row in rows for name in row))
        missing: set[str] = set()
        if rows and self._settings.read_columns is not None:
            # A chosen field may be missing in all first lines of one file.
            missing = set(self._settings.read_columns) - set(names)
            names = list(self._settings.read_columns)
        return Start(pa.schema([(name, _type(path, name, rows)) for name in names]), bool(rows), frozenset(missing))

    def pieces(self, path: str, stream: pa.NativeFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file."""
        fields = set(schema.names)
        every = self._settings.read_columns is None
        waiting: list[tuple[int, dict[str, Any]]] = []
        size = 0
        for number, row, length in _rows(path, stream):
            if every and not row.keys() <= fields:
                name = next(name for name in row if name not in fields)
                raise InputError(
                    f"{path}: line {number} has the field {name!r}, which the first {FIRST_LINES} lines of the files "
                    "do not have. Choose the fields by inputs.columns."
                )
            waiting.append((number, row))
            size += length
            if len(waiting) == PIECE_LINES or size >= PIECE_BYTES:
                yield _batch(path, waiting, schema)
                waiting, size = [], 0
        if waiting:
            yield _batch(path, waiting, schema)


def _rows(path: str, stream: pa.NativeFile) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Yield the number, the object and the bytes of each line that is not blank."""
    lines = io.BufferedReader(stream, 1024 * 1024)
    number = 0
    while line := lines.readline(LINE_BYTES + 1):
        number += 1
        if len(line) > LINE_BYTES:
            raise InputError(
                f"{path}: line {number} is longer than {LINE_BYTES >> 20} MiB. JSON lines has one object per line."
            )
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: line {number} is no JSON: {' '.join(str(error).split())[:200]}") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number} is no JSON object, it is {json.dumps(row)[:100]}.")
        yield number, row, len(line)


def _type(path: str, name: str, rows: list[dict[str, Any]]) -> pa.DataType:
    try:
        return pa.array([row.get(name) for row in rows]).type
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: the field {name!r} has no common type in the first lines: {text}") from error


def _batch(path: str, rows: list[tuple[int, dict[str, Any]]], schema: pa.Schema) -> pa.RecordBatch:
    try:
        arrays = [_array([row.get(field.name) for _, row in rows], field.type) for field in schema]
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        for number, row in rows:
            for field in schema:
                try:
                    _array([row.get(field.name)], field.type)
                except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                    value = json.dumps(row.get(field.name))[:100]
                    raise InputError(
                        f"{path}: line {number} has {field.name!r} = {value}, the first lines have {field.type}."
                    ) from error
        raise
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values in a type.

    :raises pyarrow.ArrowException: a value does not fit. pyarrow itself would cut fractions, and drop nested fields.
    """
    if pa.types.is_integer(kind):
        fits = float not in set(map(type, values))
    else:
        fits = not pa.types.is_nested(kind) or all(_fits(value, kind) for value in values)
    if not fits:
        raise pa.ArrowInvalid(f"a value is no {kind}")
    return pa.array(values, type=kind)


def _fits(value: Any, kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        fields = {field.name: field.type for field in kind}
        return value.keys() <= fields.keys() and all(_fits(inner, fields[name]) for name, inner in value.items())
    if pa.types.is_list(kind) and isinstance(value, list):
        return all(_fits(inner, kind.value_type) for inner in value)
    return not (pa.types.is_integer(kind) and isinstance(value, float))
