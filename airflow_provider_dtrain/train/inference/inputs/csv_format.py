"""CSV as input: a header line, a separator, and quotes around values with separators or line breaks.

All values are read as texts. Those of the processor become numbers if all of the first rows are, or what the user
declares. Those that are passed through stay texts, unless their type is declared.
"""

from __future__ import annotations

import io
import reprlib
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import csv

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.column_types import type_text
from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch
from airflow_provider_dtrain.train.inference.inputs.columns import check_names, chosen_schema, values
from airflow_provider_dtrain.train.inference.inputs.csv_records import ClosedQuotes, csv_records
from airflow_provider_dtrain.train.inference.inputs.csv_values import guessed, has_texts, of_texts
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings, split_codec
from airflow_provider_dtrain.train.inference.inputs.sources import reason
from airflow_provider_dtrain.train.inference.inputs.table_batches import recut
from airflow_provider_dtrain.train.inference.inputs.text_tables import Columns, FileStart, ShardText
from airflow_provider_dtrain.train.inference.inputs.text_types import JSON, declared_type, widest

#: Bytes of a file's beginning, which decide the types.
START_BYTES = 1024 * 1024
#: Bytes that are parsed at a time. A record must fit. In a file that was cut, the longest record is known.
BLOCK_BYTES, UNKNOWN_BLOCK_BYTES = 4 * 1024 * 1024, 16 * 1024 * 1024
#: Separators of files that are often named ``.csv``.
DELIMITERS = (",", ";", "\t", "|")


class CsvFormat:
    """Parses CSV by pyarrow, block by block."""

    name = "CSV"

    def __init__(self, settings: InputSettings) -> None:
        self._settings = settings
        for name, text in settings.types.items():
            if not has_texts(declared_type(text)):
                raise InputError(
                    f"CSV has no values of type {text}, which inputs.schema declares for {name!r}. Read them as string."
                )

    def start(self, path: str, stream: BinaryIO) -> FileStart:
        """Return the header's columns, with types that all values of the first rows have."""
        content = stream.read(START_BYTES)
        is_whole = len(content) < START_BYTES
        records = list(csv_records(io.BytesIO(content), self._delimiter(path), is_whole=is_whole))
        at = next((i for i, (_, is_record) in enumerate(records) if is_record), None)
        if at is None:
            raise InputError(f"{path} has no header line.")
        header = sum(size for size, _ in records[: at + 1])
        # The last record may continue behind these bytes.
        stop = len(content) if is_whole else sum(size for size, _ in records[:-1])
        if stop < header:
            raise InputError(f"{path}: the header line is longer than {START_BYTES >> 20} MiB. Is it a CSV file?")
        names = self._header(path, content[:header])
        chosen = self._chosen(path, names)
        rows = pa.schema([(name, pa.string()) for name in chosen]).empty_table()
        has_rows = any(is_record for _, is_record in records[at + 1 :])
        if has_rows and stop > header:
            stream, columns = io.BytesIO(content[header:stop]), Columns({}, dict.fromkeys(chosen, "string"))
            skips = self._settings.skips_bad_rows
            part = ShardText(path, stream, columns, 0, 0, at + 1, tuple(names), skips_bad_rows=skips)
            rows = pa.Table.from_batches((piece for piece, _ in self._pieces(part)), rows.schema)
        return FileStart(tuple(names), self._columns(rows.combine_chunks()), has_rows or not is_whole)

    def common(self, starts: Sequence[tuple[str, FileStart]]) -> Columns:
        """Return the columns of all files.

        :raises InputError: two files have other columns, or a column has numbers in one and texts in another
        """
        (first, start), *other_starts = starts
        found = dict(start.columns.data)
        for path, other in other_starts:
            check_names(start.columns.names, first, other.columns.names, path)
            for name, now in other.columns.data.items():
                kind = widest((found[name], now), "null")
                if kind == JSON:
                    raise InputError(
                        f"The columns of the input's files differ: {name!r} is {found[name]} in {first} and {now} in "
                        f"{path}. Set inputs.schema: {{{name}: string}}, or convert one of them."
                    )
                found[name] = kind
        return Columns({name: widest((kind,), "string") for name, kind in found.items()}, start.columns.passed)

    def records(self, path: str, stream: BinaryIO) -> Iterator[tuple[int, bool]]:
        """Yield the bytes of each record, and whether it is a row. The first record is the header."""
        has_header = False
        for size, is_record in csv_records(stream, self._delimiter(path), is_whole=True):
            yield size, is_record and has_header
            has_header = has_header or is_record

    def batches(self, part: ShardText, batch_size: int) -> Iterator[InputBatch]:
        """Yield the rows of a part."""
        data = part.columns.data
        for rows in recut(self._typed(part), batch_size):
            columns = {name: values(rows.column(i), is_shared=False) for i, name in enumerate(data)}
            yield part.batch(columns, rows.columns[len(data) : -1], rows.columns[-1].to_pylist())

    # -- columns ---------------------------------------------------------------------------------------------------

    def _delimiter(self, path: str) -> str:
        stem, _ = split_codec(path)
        return self._settings.delimiter or ("\t" if stem.lower().endswith(".tsv") else ",")

    def _header(self, path: str, line: bytes) -> list[str]:
        try:
            parse = csv.ParseOptions(delimiter=self._delimiter(path), newlines_in_values=True)
            names: list[str] = csv.read_csv(io.BytesIO(line + b"\n"), parse_options=parse).column_names
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: the header line is no UTF-8 text. Convert the file to UTF-8.") from error
        other = [char for char in DELIMITERS if char in names[0] and char != self._delimiter(path)]
        if len(names) == 1 and other and self._settings.delimiter is None:
            raise InputError(
                f"{path} has one column, {names[0]!r}. If its separator is {other[0]!r}, set inputs.delimiter: "
                f"{other[0]!r}. If it has one column, set inputs.delimiter: {self._delimiter(path)!r}."
            )
        return names

    def _chosen(self, path: str, names: Sequence[str]) -> list[str]:
        chosen: list[str] = chosen_schema(
            pa.schema([(name, pa.string()) for name in names]), self._settings, path
        ).names
        unread = [name for name in self._settings.types if name not in chosen]
        if unread:
            reads = ", ".join(chosen[:20])
            raise InputError(f"inputs.schema has the column {unread[0]!r}, and the columns read are {reads} in {path}.")
        return chosen

    def _columns(self, rows: pa.Table) -> Columns:
        """Return the types of columns: those that are declared, else those of the first rows."""
        types = self._settings.types
        named = rows.column_names if self._settings.columns is None else self._settings.columns
        data = {name: types.get(name) or guessed(rows.column(name).combine_chunks()) for name in named}
        return Columns(data, {name: types.get(name, "string") for name in self._settings.passed})

    # -- rows ------------------------------------------------------------------------------------------------------

    def _typed(self, part: ShardText) -> Iterator[pa.RecordBatch]:
        """Yield the columns of the processor, those that are passed, and the numbers of the rows in the file."""
        kinds = [*part.columns.data.items(), *part.columns.passed.items()]
        types = [(name, declared_type(text)) for name, text in kinds]
        for piece, numbers in self._pieces(part):
            try:
                columns = [of_texts(piece.column(name), kind) for name, kind in types]
            except pa.ArrowInvalid:
                rows = [i for i, number in enumerate(numbers) if self._fits(part, piece.slice(i, 1), number, types)]
                piece, numbers = piece.take(pa.array(rows, pa.int64())), [numbers[i] for i in rows]
                columns = [of_texts(piece.column(name), kind) for name, kind in types]
            arrays = [*columns, pa.array(numbers, pa.int64())]
            yield pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])

    def _fits(
        self, part: ShardText, row: pa.RecordBatch, number: int, types: Sequence[tuple[str, pa.DataType]]
    ) -> bool:
        """Return whether the values of a row have the types of their columns. Other rows are left out.

        :raises InputError: a value has not, and such rows are not left out
        """
        for name, kind in types:
            try:
                of_texts(row.column(name), kind)
            except pa.ArrowInvalid:
                value = reprlib.repr(row.column(name)[0].as_py())
                origin = "as declared" if name in self._settings.types else "as in the first rows"
                error = InputError(
                    f"{part.path}: row {number + 1} has {name!r} = {value}, expected {type_text(kind)} {origin}. "
                    f"Set inputs.schema: {{{name}: string}}, or another type."
                )
                part.leave_out(number, f"row {number + 1}", error)
                return False
        return True

    def _pieces(self, part: ShardText) -> Iterator[tuple[pa.RecordBatch, Sequence[int]]]:
        """Yield columns as texts, with the numbers of their rows in the file."""
        # The parser counts the header.
        first = part.first - 1 if part.record else part.first - 2
        block_bytes = UNKNOWN_BLOCK_BYTES if part.longest is None else max(BLOCK_BYTES, part.longest + 1)
        left_out: set[int] = set()
        failed: list[InputError] = []

        def invalid(row: csv.InvalidRow) -> str:
            number = first + row.number
            error = InputError(
                f"{part.path}: row {number + 1} has {row.actual_columns} values, the header has "
                f"{row.expected_columns}: {row.text[:100]!r}. Quote values that contain the separator, or set "
                "inputs.delimiter."
            )
            try:
                part.leave_out(number, f"row {number + 1}", error)
            except InputError:
                failed.append(error)
                return "error"
            left_out.add(number)
            return "skip"

        number = part.first
        try:
            for piece in self._parsed(part, block_bytes, invalid):
                numbers: Sequence[int] = range(number, number + piece.num_rows)
                if left_out:
                    numbers = list(islice((i for i in count(number) if i not in left_out), piece.num_rows))
                number = numbers[-1] + 1 if numbers else number
                _check_utf8(part.path, piece)
                yield piece, numbers
        except pa.ArrowInvalid as error:
            raise failed[0] if failed else _named(part.path, error, block_bytes) from error

    def _parsed(
        self, part: ShardText, block_bytes: int, invalid: Callable[[csv.InvalidRow], str]
    ) -> Iterator[pa.RecordBatch]:
        names = list(part.names) if part.record else None
        # The numbers of invalid rows are known to one thread only.
        read = csv.ReadOptions(column_names=names, block_size=block_bytes, use_threads=False)
        parse = csv.ParseOptions(
            delimiter=self._delimiter(part.path), newlines_in_values=True, invalid_row_handler=invalid
        )
        chosen = part.columns.names
        types = dict.fromkeys(chosen, pa.string())
        convert = csv.ConvertOptions(check_utf8=False, column_types=types, include_columns=chosen)
        # Of other parts, the plan has found the end of each record.
        is_checked = part.record > 0 or part.longest is not None
        stream: Any = part.stream if is_checked else ClosedQuotes(part.stream, self._delimiter(part.path))
        with csv.open_csv(stream, read, parse, convert) as reader:
            yield from reader


def _check_utf8(path: str, piece: pa.RecordBatch) -> None:
    for name, column in zip(piece.schema.names, piece.columns):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise InputError(f"{path}: column {name!r} is no UTF-8 text. Convert the file to UTF-8.") from None


def _named(path: str, error: pa.ArrowInvalid, block_bytes: int) -> InputError:
    advice = ""
    if "straddling" in str(error):
        advice = f". A record is longer than {block_bytes >> 20} MiB, or a quote is never closed"
    return InputError(f"{path} cannot be read as CSV: {reason(error)}{advice}")
