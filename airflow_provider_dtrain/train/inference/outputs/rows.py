"""Rows of the output: the result of a batch with row ids and passed columns, checked against the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_dtrain.train.errors import ResultRowsError, SchemaError
from airflow_provider_dtrain.train.inference.column_types import converted, parse_type, type_text
from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch
from airflow_provider_dtrain.train.inference.outputs.options import ERROR, OutputOptions
from airflow_provider_dtrain.train.inference.outputs.result_columns import result_columns
from airflow_provider_dtrain.train.inference.plain_types import widest_type


def to_rows(result: Any, batch: InputBatch, options: OutputOptions) -> pa.RecordBatch | None:
    """Return the rows of a batch's result. The first result decides the columns and types that are not declared.

    :param result: return value of ``process_batch``; None: no rows, which then holds for all batches
    :param options: remembers the columns, so that all calls for one output take the same object
    :return: rows that share no memory with the batch or the result; None: the processor returned no rows
    :raises ResultRowsError: the result has another number of rows than the batch
    :raises SchemaError: the columns or types differ from the declared ones or from earlier rows, or two have one name
    """
    if options.has_rows is not None and options.has_rows != (result is not None):
        one, other = ("rows", "None") if options.has_rows else ("None", "rows")
        raise ResultRowsError(f"process_batch returned {one} for earlier batches and {other} for this one.")
    if result is None:
        options.has_rows = False
        return None
    columns = _merged(result_columns(result, batch.rows, batch.maps), batch, options)
    if isinstance(result, list) and isinstance(result[0], Mapping):
        # A key that no row of the batch has is null in all of them.
        for name in (*options.declared, *options.known):
            columns.setdefault(name, pa.nulls(batch.rows))
    _check_names(columns, options)
    names = list(options.known or columns)
    table = pa.record_batch([_fitted(name, columns[name], options) for name in names], names=names)
    options.has_rows = True
    options.known = {field.name: type_text(field.type) for field in table.schema}
    return table


def _merged(result: dict[str, pa.Array], batch: InputBatch, options: OutputOptions) -> dict[str, pa.Array]:
    """Return all columns in the order of the output: row id, passed columns, result."""
    columns: dict[str, pa.Array] = {}
    if options.row_id is not None:
        columns[options.row_id] = pa.array(batch.ids, pa.int64())
    if options.columns:
        assert batch.passed is not None, "the input was opened without outputs.columns"
        columns.update({name: batch.passed.column(name) for name in options.columns})
    taken = sorted(set(columns) & set(result))
    if taken:
        raise SchemaError(
            f"process_batch returns a column {taken[0]!r}, which outputs.columns or outputs.row_id has as well. "
            "Rename one of them."
        )
    if options.marks and ERROR in result:
        raise SchemaError(f"process_batch returns a column {ERROR!r}, which on_bad_row: mark adds as well. Rename it.")
    columns.update(result)
    if options.marks:
        columns[ERROR] = pa.nulls(batch.rows, pa.string())
    if not columns:
        raise SchemaError("process_batch returned no column. Return at least one, or None for no rows.")
    return columns


def _check_names(columns: Mapping[str, pa.Array], options: OutputOptions) -> None:
    missing = [name for name in options.declared if name not in columns]
    if missing:
        found = ", ".join(columns)
        raise SchemaError(f"outputs.schema declares the column {missing[0]!r}, the result has only: {found}.")
    missing_columns = [name for name in options.known if name not in columns]
    new = [name for name in columns if name not in options.known]
    if options.known and (missing_columns or new):
        change = f"has no column {missing_columns[0]!r}" if missing_columns else f"has a new column {new[0]!r}"
        raise SchemaError(
            f"The result {change}. The columns of earlier rows are {', '.join(options.known)}. Return the same columns "
            "for each batch. Of rows that are dicts, declare the keys that come later in outputs.schema."
        )


def _fitted(name: str, column: pa.Array, options: OutputOptions) -> pa.Array:
    """Return a column in its declared type, else in that of earlier rows."""
    declared, known = options.declared.get(name), options.known.get(name, "null")
    found = type_text(column.type)
    if declared is not None:
        return _converted(name, column, declared, f"outputs.schema declares {declared}")
    if known in ("null", found):
        return column
    if pa.types.is_null(column.type) or _is_narrower(column.type, known):
        return _converted(name, column, known, f"it was {known} in earlier rows")
    raise SchemaError(
        f"Column {name!r} of the result is {found}, it was {known} in earlier rows. "
        "Return the same type for each batch, or declare it in outputs.schema."
    )


def _converted(name: str, column: pa.Array, text: str, reason: str) -> pa.Array:
    try:
        return converted(column, parse_type(text))
    except (pa.ArrowException, SchemaError) as error:
        message = " ".join(str(error).split())[:300]
        raise SchemaError(f"Column {name!r} of the result is {type_text(column.type)}, {reason}: {message}") from error


def _is_narrower(kind: pa.DataType, known: str) -> bool:
    """Return whether every value of a type is a value of the known type."""
    try:
        wanted = parse_type(known)
    except SchemaError:
        return False
    return bool(widest_type(kind, wanted) == wanted)
