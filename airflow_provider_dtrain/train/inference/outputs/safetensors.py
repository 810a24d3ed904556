"""Parts in the safetensors format: one tensor per column, whose first dimension is the row.

Source: the format's description in the README of huggingface/safetensors: 8 bytes with the header's length, the header
in JSON, the tensors' bytes in little-endian order.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from contextlib import ExitStack
from typing import Any, BinaryIO

import pyarrow as pa

from airflow_provider_dtrain.train.errors import SchemaError
from airflow_provider_dtrain.train.inference.column_types import type_text
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions

#: Type -> name in the header, and bytes of a value.
NAMES = {
    pa.bool_(): ("BOOL", 1), pa.int8(): ("I8", 1), pa.int16(): ("I16", 2), pa.int32(): ("I32", 4),
    pa.int64(): ("I64", 8), pa.uint8(): ("U8", 1), pa.uint16(): ("U16", 2), pa.uint32(): ("U32", 4),
    pa.uint64(): ("U64", 8), pa.float16(): ("F16", 2), pa.float32(): ("F32", 4), pa.float64(): ("F64", 8),
}  # fmt: skip
#: Name in the header that is no tensor.
METADATA = "__metadata__"


class SafetensorsEncoder:
    """Writes record batches to a safetensors file.

    The header comes first and has the final sizes. So columns wait in temporary files beside the part.
    """

    def __init__(self, file: BinaryIO, options: OutputOptions) -> None:
        self._file = file
        self._spilled = ExitStack()
        self._columns: dict[str, BinaryIO] = {}
        self._schema = pa.schema([])
        self._rows = 0

    def write(self, table: pa.RecordBatch) -> None:
        """Append rows to the columns' temporary files."""
        for column, field in zip(table.columns, table.schema):
            content = _values(field.name, column)
            if field.name not in self._columns:
                spill = tempfile.TemporaryFile(dir=_folder(self._file))  # noqa: SIM115
                self._columns[field.name] = self._spilled.enter_context(spill)
            self._columns[field.name].write(content)
        self._schema = table.schema
        self._rows += table.num_rows

    def close(self) -> pa.Schema:
        """Write the header and all tensors. Remove the temporary files."""
        with self._spilled:
            # Large values first: each tensor then begins at a multiple of its values' size.
            fields = sorted(self._schema, key=lambda field: -NAMES[_shape(field.type)[0]][1])
            header: dict[str, Any] = {METADATA: {"format": "pt"}}
            offset = 0
            for field in fields:
                kind, shape = _shape(field.type)
                name, size = NAMES[kind]
                end = offset + self._rows * math.prod(shape) * size
                header[field.name] = {"dtype": name, "shape": [self._rows, *shape], "data_offsets": [offset, end]}
                offset = end
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            self._file.write(len(text).to_bytes(8, "little") + text)
            for field in fields:
                spill = self._columns[field.name]
                spill.seek(0)
                shutil.copyfileobj(spill, self._file, 1024 * 1024)
        return self._schema


def _values(name: str, column: pa.Array) -> Any:
    """Return the bytes of a column's values.

    :raises SchemaError: the column is no tensor
    """
    kind, _ = _shape(column.type)
    if name == METADATA or kind not in NAMES:
        raise SchemaError(
            f"Column {name!r} is {type_text(column.type)}, which safetensors cannot hold: it has numbers only. "
            "Leave the column out, or set outputs.format to parquet."
        )
    while pa.types.is_fixed_size_list(column.type) and not column.null_count:
        column = column.flatten()
    if column.null_count:
        raise SchemaError(f"Column {name!r} has nulls, which safetensors cannot hold. Set outputs.format to parquet.")
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    size = NAMES[column.type][1]
    return memoryview(column.buffers()[1])[column.offset * size : (column.offset + len(column)) * size]


def _shape(kind: pa.DataType) -> tuple[pa.DataType, list[int]]:
    shape = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return kind, shape


def _folder(file: BinaryIO) -> str | None:
    """Return the folder of a file, whose disk has room for the part."""
    name = getattr(file, "name", None)
    return os.path.dirname(os.path.abspath(name)) if isinstance(name, str) else None
