"""From the result of ``process_batch`` to Arrow columns. All memory is copied: a processor may reuse its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import torch

from airflow_provider_dtrain.train.errors import ResultRowsError, SchemaError
from airflow_provider_dtrain.train.inference.outputs.result_copy import is_of
from airflow_provider_dtrain.train.inference.plain_types import plain

#: Name of the column if the result is one array.
OUTPUT = "output"
#: Type of a tensor -> type of the column. Other floating-point types become float32, which holds their values exactly.
TYPES = {
    torch.bool: pa.bool_(), torch.uint8: pa.uint8(), torch.int8: pa.int8(), torch.int16: pa.int16(),
    torch.int32: pa.int32(), torch.int64: pa.int64(), torch.uint16: pa.uint16(), torch.uint32: pa.uint32(),
    torch.uint64: pa.uint64(), torch.float16: pa.float16(), torch.float32: pa.float32(), torch.float64: pa.float64(),
}  # fmt: skip
_ADVICE = "Return a dict of columns, an array, a list with one item per row, a table or None."


def result_columns(result: Any, rows: int, maps: Mapping[str, pa.DataType] | None = None) -> dict[str, pa.Array]:
    """Return the columns of a result.

    :param result: dict of array-likes, one array-like (column ``output``), list of dicts or values, Arrow table,
        pandas frame
    :param rows: number of rows of the batch
    :param maps: column of the input that has maps -> its type, which a result of the same name keeps
    :raises ResultRowsError: the result has another number of rows
    :raises SchemaError: a column has no type that can be written
    """
    columns = {}
    for name, value in _named(result).items():
        if not isinstance(name, str) or not name:
            raise SchemaError(f"A column's name must be a text that is not empty, got {name!r}.")
        length = _length(name, value)
        if length != rows:
            raise ResultRowsError(
                f"process_batch returned {length} rows in column {name!r} for a batch of {rows} rows. "
                "Return one row for each row of the batch, in the same order, or None for no rows at all."
            )
        columns[name] = _as_it_came(value, (maps or {}).get(name)) or _column(name, value)
    return columns


def _as_it_came(value: Any, kind: pa.DataType | None) -> pa.Array | None:
    """Return maps that a processor returns in the type of the input, whose pairs could also be lists."""
    if kind is None or not isinstance(value, list):
        return None
    with contextlib.suppress(pa.ArrowException, TypeError, ValueError):
        return pa.array(value, kind)
    return None


def _named(result: Any) -> Mapping[str, Any]:
    if isinstance(result, Mapping):
        return result
    if isinstance(result, list):
        return _of_dicts(result) if result and all(isinstance(row, Mapping) for row in result) else {OUTPUT: result}
    kind = type(result)
    if isinstance(result, torch.Tensor) or is_of(kind, "numpy", "ndarray") or is_of(kind, "pandas", "Series"):
        return {OUTPUT: result}
    if isinstance(result, (pa.Array, pa.ChunkedArray)):
        return {OUTPUT: result}
    table = _table(result)
    if table is None:
        raise SchemaError(f"process_batch returned a {type(result).__name__}. {_ADVICE}")
    names = table.schema.names
    if len(set(names)) < len(names):
        raise SchemaError(f"process_batch returned a table with two columns of the same name: {', '.join(names)}.")
    return {name: table.column(i) for i, name in enumerate(names)}


def _table(result: Any) -> Any:
    """Return a table of pyarrow, pandas, or a library that exports Arrow data, else None."""
    if isinstance(result, (pa.Table, pa.RecordBatch)):
        return result
    if is_of(type(result), "pandas", "DataFrame"):
        return pa.Table.from_pandas(result, preserve_index=False)
    return pa.table(result) if hasattr(result, "__arrow_c_stream__") else None


def _of_dicts(rows: list[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _length(name: str, value: Any) -> int:
    if isinstance(value, (str, bytes, Mapping, tuple, set)) or not hasattr(value, "__len__"):
        raise SchemaError(
            f"Column {name!r} of the result is a {type(value).__name__}, expected one value per row. {_ADVICE}"
        )
    if getattr(value, "ndim", 1) == 0:
        raise ResultRowsError(f"Column {name!r} of the result is a single value, expected one value per row.")
    return len(value)


def _column(name: str, value: Any) -> pa.Array:
    try:
        if isinstance(value, torch.Tensor):
            return of_tensor(value)
        if is_of(type(value), "numpy", "ndarray"):
            return _of_numpy(value)
        if isinstance(value, list):
            return _of_list(value)
        return plain(value if isinstance(value, (pa.Array, pa.ChunkedArray)) else pa.array(value))
    except SchemaError:
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError, RuntimeError) as error:
        text = " ".join(str(error).split())[:300]
        raise SchemaError(
            f"Column {name!r} of the result cannot be written: {text.rstrip('.')}. Return values of one type, such as "
            "texts or JSON."
        ) from error


def of_tensor(tensor: torch.Tensor) -> pa.Array:
    """Return a column with a copy of a tensor. Further dimensions become lists of fixed sizes."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
        raise TypeError(f"a tensor of type {tensor.dtype} and layout {tensor.layout} is no column; convert it")
    if 0 in tensor.shape:
        raise ValueError(f"its shape {tuple(tensor.shape)} has a 0")
    tensor = tensor.detach()
    if tensor.dtype not in TYPES:
        tensor = tensor.float()
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    copy.copy_(tensor)
    flat = copy.view(torch.uint8) if copy.dtype == torch.bool else copy
    kind = TYPES[flat.dtype]
    buffer = pa.foreign_buffer(flat.data_ptr(), flat.numel() * flat.element_size(), base=flat)
    column = pa.Array.from_buffers(kind, flat.numel(), [None, buffer])
    column = column.cast(pa.bool_()) if copy.dtype == torch.bool else column
    for size in reversed(tensor.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _of_numpy(array: Any) -> pa.Array:
    if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
        return of_tensor(torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C")))
    if array.dtype.kind in "mM" and array.ndim == 1:
        return pa.array(array)
    return _of_list(array.tolist())


def _of_list(items: list[Any]) -> pa.Array:
    if any(isinstance(item, torch.Tensor) or is_of(type(item), "numpy", "ndarray") for item in items):
        return _of_arrays([_as_tensor(item) for item in items])
    try:
        return plain(pa.array(items))
    except (pa.ArrowException, TypeError, ValueError):
        if not _are_maps(items):
            raise
    pairs = [pair for item in items for pair in item or ()]
    keys, values = (_of_list([pair[i] for pair in pairs]).type for i in (0, 1))
    return pa.array(items, pa.map_(keys, values))


def _are_maps(items: list[Any]) -> bool:
    """Return whether values are maps as Arrow returns them: lists of pairs. A pair of a JSON list is no tuple."""
    lists = [item for item in items if item is not None]
    pairs = [pair for item in lists if isinstance(item, list) for pair in item]
    is_map = all(isinstance(item, list) for item in lists)
    return is_map and bool(pairs) and all(type(pair) is tuple and len(pair) == 2 for pair in pairs)


def _of_arrays(items: list[torch.Tensor | None]) -> pa.Array:
    """Return a column of tensors: values, lists of any length, or tensors of one shape."""
    present = [item.detach().cpu() for item in items if item is not None]
    dimensions = {item.ndim for item in present}
    if len(dimensions) > 1:
        raise ValueError("its tensors have different numbers of dimensions")
    if dimensions - {0, 1}:
        if len(present) < len(items):
            raise ValueError("some of its tensors are None")
        return of_tensor(torch.stack(present))
    # pyarrow would cut the fractions of later tensors to the type of the first one.
    kind = TYPES.get(reduce(torch.promote_types, (item.dtype for item in present)), pa.float32())
    values = [None if item is None else item.detach().tolist() for item in items]
    return pa.array(values, type=kind if dimensions == {0} else pa.list_(kind))


def _as_tensor(item: Any) -> torch.Tensor | None:
    return item if item is None or isinstance(item, torch.Tensor) else torch.as_tensor(item)
