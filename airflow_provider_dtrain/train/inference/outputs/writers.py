"""Writer of one part: rows of a shard in one file of the output's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import pyarrow as pa

from airflow_provider_dtrain.train.errors import OutputError
from airflow_provider_dtrain.train.inference.column_types import type_text
from airflow_provider_dtrain.train.inference.outputs.json_lines import JsonLinesEncoder
from airflow_provider_dtrain.train.inference.outputs.options import OutputOptions
from airflow_provider_dtrain.train.inference.outputs.parquet import ParquetEncoder


class Encoder(Protocol):
    """Writes record batches to a file in one format. It never closes the file."""

    def write(self, table: pa.RecordBatch) -> None:
        """Write rows, now or later."""

    def close(self) -> pa.Schema:
        """Write the rest. Return the schema of the file."""


@dataclass(frozen=True)
class PartInfo:
    """Contents of a finished part."""

    rows: int
    #: Column -> text of its type.
    schema: Mapping[str, str]


class PartWriter:
    """Writes the rows of one shard, which has at least one. Memory is bounded by a row group, not by the shard.

    :param file: open for writing; it stays open, and the caller makes it durable
    :param options: those of :func:`~airflow_provider_dtrain.train.inference.outputs.rows.to_rows`
    """

    def __init__(self, file: BinaryIO, options: OutputOptions) -> None:
        self._encoder = ENCODERS[options.format](file, options)
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the rows of a batch.

        :raises OutputError: the file cannot be written
        :raises SchemaError: the format cannot hold a column
        """
        with _named_errors():
            self._encoder.write(rows)
        self._rows += rows.num_rows

    def close(self) -> PartInfo:
        """Write the rest of the part.

        :raises OutputError: the file cannot be written
        """
        with _named_errors():
            schema = self._encoder.close()
        return PartInfo(self._rows, {field.name: type_text(field.type) for field in schema})


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise OutputError(f"The part cannot be written: {type(error).__name__}: {error}") from error


ENCODERS: Mapping[str, Callable[[BinaryIO, OutputOptions], Encoder]] = {
    "parquet": ParquetEncoder,
    "jsonl": JsonLinesEncoder,
}
