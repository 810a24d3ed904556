"""Parts in Parquet, written in row groups of bounded size."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_dtrain.train.errors import SchemaError
from airflow_provider_dtrain.train.inference.column_types import type_text
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions

#: A row group is written once it has this many rows or bytes.
GROUP_ROWS, GROUP_BYTES = 65536, 32 * 1024 * 1024


class ParquetEncoder:
    """Writes record batches to a Parquet file."""

    def __init__(self, file: BinaryIO, options: OutputOptions) -> None:
        self._file = file
        self._writer: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def write(self, table: pa.RecordBatch) -> None:
        """Keep rows until they fill a row group."""
        self._waiting.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> pa.Schema:
        """Write the last row group and the footer."""
        if self._waiting:
            self._flush()
        assert self._writer is not None, "a part has rows"
        self._writer.close()
        return self._schema

    def _flush(self) -> None:
        if self._writer is None:
            self._schema = _schema_of(self._waiting)
            self._writer = pq.ParquetWriter(self._file, self._schema)
        tables = [_with_types(table, self._schema) for table in self._waiting]
        self._writer.write_table(pa.Table.from_batches(tables, self._schema), row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0


def _schema_of(tables: list[pa.RecordBatch]) -> pa.Schema:
    """Return the types of rows. A column whose first rows are all null has the type of later ones."""
    fields = []
    for i, field in enumerate(tables[0].schema):
        kinds = [table.schema.field(i).type for table in tables]
        fields.append((field.name, next((kind for kind in kinds if not pa.types.is_null(kind)), field.type)))
    return pa.schema(fields)


def _with_types(table: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for column, field in zip(table.columns, schema):
        if column.type != field.type and not pa.types.is_null(column.type):
            raise SchemaError(
                f"Column {field.name!r} is {type_text(column.type)}, earlier rows of this part have only "
                f"{type_text(field.type)}. Declare its type in outputs.schema."
            )
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
