"""Columns of a table: which ones are read, and each as a tensor or a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import torch

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.column_types import type_text
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.plain_types import decoded, plain_type, widest_type

#: Types without a complete counterpart in torch -> the type that holds all of their values.
WIDENED = {pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.bool_(): pa.uint8()}


def chosen_schema(schema: pa.Schema, settings: InputSettings, path: str) -> pa.Schema:
    """Return the columns of a file that are read, with plain types.

    :raises InputError: a column is missing, or its name appears twice
    """
    names = list(schema.names if settings.read_columns is None else settings.read_columns)
    if not names:
        raise InputError(f"{path} has rows without any column.")
    missing = [name for name in (*names, *settings.passed) if name not in schema.names]
    if missing:
        found = ", ".join(schema.names[:20]) or "none"
        raise InputError(f"{path} has no column {', '.join(map(repr, missing))}. Columns found: {found}.")
    twice = sorted({name for name in names if schema.names.count(name) > 1})
    if twice:
        raise InputError(
            f"{path} has several columns with the name {twice[0]!r}. Rename them, or choose others by inputs.columns."
        )
    return pa.schema([(name, plain_type(schema.field(name).type)) for name in names])


def common_schema(files: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return the columns of files, with types that hold the values of all of them exactly.

    :param files: path and chosen columns of each file, at least one
    :raises InputError: a column is missing in a file, or has types without a common one; the message names both files
    """
    (first, common), *other_files = files
    #: Column -> the file that gave it its type.
    origins = dict.fromkeys(common.names, first)
    for path, schema in other_files:
        check_names(common.names, first, schema.names, path)
        for i, name in enumerate(common.names):
            before, now = common.field(i).type, schema.field(name).type
            kind = widest_type(before, now)
            if kind is None:
                raise InputError(
                    f"The columns of the input's files differ: {name!r} is {type_text(before)} in {origins[name]} and "
                    f"{type_text(now)} in {path}. Convert one of them, or leave the column out by inputs.columns."
                )
            if kind != before:
                common = common.set(i, pa.field(name, kind))
                origins[name] = path
    return common


def check_names(first: Sequence[str], first_path: str, names: Sequence[str], path: str) -> None:
    """Check that two files have the same columns, in any order.

    :raises InputError: they differ; the message names both files and the column
    """
    only = [name for name in first if name not in names]
    new = [name for name in names if name not in first]
    if only or new:
        owner, other, name = (first_path, path, only[0]) if only else (path, first_path, new[0])
        raise InputError(
            f"The columns of the input's files differ: {owner} has {name!r}, {other} has not. "
            "Choose the common columns by inputs.columns, or run one inference for each kind of file."
        )


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns and the types of a schema.

    :raises pyarrow.ArrowInvalid: a value does not fit
    """
    columns = [batch.column(batch.schema.get_field_index(name)) for name in schema.names]
    arrays = [
        column if column.type == field.type else decoded(column).cast(field.type)
        for column, field in zip(columns, schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def values(column: pa.Array, *, is_shared: bool) -> Any:
    """Return a column as a tensor if it is numeric without nulls, else as a list.

    :param is_shared: the column's memory is used elsewhere, so that the tensor must be a copy
    """
    return _tensor(column, is_shared=is_shared) if _is_tensor(column) else _list(column)


def _is_tensor(column: pa.Array) -> bool:
    if column.null_count:
        return False
    if pa.types.is_fixed_size_list(column.type):
        return column.type.list_size > 0 and _is_tensor(column.flatten())
    kind = column.type
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(number and kind != pa.uint64())


def _tensor(column: pa.Array, *, is_shared: bool) -> torch.Tensor:
    shape = [len(column)]
    while pa.types.is_fixed_size_list(column.type):
        shape.append(column.type.list_size)
        column = column.flatten()
    kind = WIDENED.get(column.type)
    tensor = torch.utils.dlpack.from_dlpack(column if kind is None else column.cast(kind))
    if pa.types.is_boolean(column.type):
        tensor = tensor.bool()
    elif is_shared and kind is None:
        tensor = tensor.clone()
    return tensor.reshape(shape)


def _list(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        # Python's times have microseconds. The pass-through keeps the nanoseconds.
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    found: list[Any] = column.to_pylist()
    return found
