"""Rows of the output that stand for bad rows of the input: all columns null, except the row id and the error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_dtrain.train.inference.inputs.batch import BadRow
from airflow_provider_dtrain.train.inference.outputs.options import ERROR, OutputOptions

#: Most characters of an error.
ERROR_CHARACTERS = 300


def marked(rows: pa.RecordBatch, ids: Sequence[int], bad: Sequence[BadRow], options: OutputOptions) -> pa.RecordBatch:
    """Return rows with those of bad rows between them, in the order of the row ids.

    :param ids: row ids of the rows
    """
    if not bad:
        return rows
    added = _rows_of(rows.schema, bad, options)
    columns = [pa.concat_arrays([rows.column(i), added.column(i)]) for i in range(rows.num_columns)]
    every = [*ids, *(row.row_id for row in bad)]
    order = pa.array(sorted(range(len(every)), key=every.__getitem__), pa.int64())
    return pa.RecordBatch.from_arrays([column.take(order) for column in columns], schema=rows.schema)


def _rows_of(schema: pa.Schema, bad: Sequence[BadRow], options: OutputOptions) -> pa.RecordBatch:
    own: dict[str, list[Any]] = {ERROR: [f"{row.name}: {row.error}"[:ERROR_CHARACTERS] for row in bad]}
    if options.row_id is not None:
        own[options.row_id] = [row.row_id for row in bad]
    columns = [
        pa.array(own[field.name], field.type) if field.name in own else pa.nulls(len(bad), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
