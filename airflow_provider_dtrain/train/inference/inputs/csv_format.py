"""CSV as input: a header line, comma or tab, and quotes around values with line breaks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import csv

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs.settings import split_codec
from airflow_provider_dtrain.train.inference.inputs.sources import reason
from airflow_provider_dtrain.train.inference.inputs.text_tables import Start

#: Bytes that are parsed at a time. A record must fit.
BLOCK_BYTES = 4 * 1024 * 1024


class CsvFormat:
    """Parses CSV by pyarrow, block by block."""

    name = "CSV"

    def start(self, path: str, stream: pa.NativeFile) -> Start:
        """Return the header's columns, with types that all values of the first block have."""
        with _opened(path, stream, csv.ConvertOptions()) as reader:
            return Start(reader.schema, any(piece.num_rows for piece in reader))

    def pieces(self, path: str, stream: pa.NativeFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file."""
        types = {field.name: field.type for field in schema}
        options = csv.ConvertOptions(column_types=types, include_columns=schema.names)
        with _opened(path, stream, options) as reader:
            try:
                yield from reader
            except pa.ArrowInvalid as error:
                raise _named(path, error) from error


def _opened(path: str, stream: pa.NativeFile, options: csv.ConvertOptions) -> csv.CSVStreamingReader:
    stem, _ = split_codec(path)
    delimiter = "\t" if stem.lower().endswith(".tsv") else ","
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        return csv.open_csv(stream, csv.ReadOptions(block_size=BLOCK_BYTES), parse, options)
    except pa.ArrowInvalid as error:
        raise _named(path, error) from error


def _named(path: str, error: pa.ArrowInvalid) -> InputError:
    text = reason(error)
    advice = ""
    if "straddling" in text:
        advice = f" A record is longer than {BLOCK_BYTES >> 20} MiB, or a quote is never closed."
    elif "conversion error" in text:
        advice = " The types of columns are those of the first rows. Write the values in one way, or as Parquet."
    return InputError(f"{path} cannot be read as CSV: {text}.{advice}")
