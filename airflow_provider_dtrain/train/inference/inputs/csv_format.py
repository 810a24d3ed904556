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
from airflow_provider_dtrain.train.inference.inputs.batch import BadRow, InputBatch
from airflow_provider_dtrain.train.inference.inputs.columns import check_names, chosen_schema, values
from airflow_provider_dtrain.train.inference.inputs.csv_records import ClosedQuotes, csv_records
from airflow_provider_dtrain.train.inference.inputs.csv_values import declared_type, guessed, misfits, of_texts
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings, split_codec
from airflow_provider_dtrain.train.inference.inputs.sources import reason
from airflow_provider_dtrain.train.inference.inputs.table_batches import recut
from airflow_provider_dtrain.train.inference.inputs.text_tables import Columns, Part, Start

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
            try:
                of_texts(pa.array([None], pa.string()), declared_type(text))
            except pa.ArrowNotImplementedError as error:
                raise InputError(
                    f"CSV has no values of type {text}, which inputs.schema declares for {name!r}. Read them as string."
                ) from error

    def start(self, path: str, stream: BinaryIO) -> Start:
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
            part = Part(path, io.BytesIO(content[header:stop]), Columns({}, {}), 0, 0, at + 1, tuple(names), None)
            pieces = [piece for piece, _ in self._pieces(part, chosen, [], START_BYTES)]
            rows = pa.Table.from_batches(pieces, rows.schema)
        return Start(tuple(names), self._columns(rows.combine_chunks()), has_rows or not is_whole)

    def common(self, starts: Sequence[tuple[str, Start]]) -> Columns:
        """Return the columns of all files.

        :raises InputError: two files have other columns, or a column has numbers in one and texts in another
        """
        (first, start), *others = starts
        found = dict(start.columns.data)
        for path, other in others:
            check_names(start.columns.names, first, other.columns.names, path)
            for name, now in other.columns.data.items():
                before = found[name]
                if before == now or "null" in (before, now):
                    found[name] = before if now == "null" else now
                elif {before, now} == {"int64", "float64"}:
                    found[name] = "float64"
                else:
                    raise InputError(
                        f"The columns of the input's files differ: {name!r} is {before} in {first} and {now} in "
                        f"{path}. Set inputs.schema: {{{name}: string}}, or convert one of them."
                    )
        return Columns({name: _or_text(kind) for name, kind in found.items()}, start.columns.passed)

    def records(self, path: str, stream: BinaryIO) -> Iterator[tuple[int, bool]]:
        """Yield the bytes of each record, and whether it is a row. The first record is the header."""
        has_header = False
        for size, is_record in csv_records(stream, self._delimiter(path), is_whole=True):
            yield size, is_record and has_header
            has_header = has_header or is_record

    def batches(self, part: Part, batch_size: int) -> Iterator[InputBatch]:
        """Yield the rows of a part."""
        data, passed = part.columns.data, part.columns.passed
        bad_rows: list[BadRow] = []
        for rows in recut(self._typed(part, bad_rows), batch_size):
            columns = {name: values(rows.column(i), is_shared=False) for i, name in enumerate(data)}
            kept = rows.columns[len(data) : -1]
            numbers = rows.columns[-1]
            first, last = (part.base_id + numbers[i].as_py() for i in (0, -1))
            yield InputBatch(
                columns,
                rows.num_rows,
                pa.RecordBatch.from_arrays(kept, names=list(passed)) if passed else None,
                first,
                # Rows between them were left out.
                [part.base_id + number for number in numbers.to_pylist()] if last - first >= rows.num_rows else None,
                bad_rows=_taken(bad_rows),
            )
        if bad_rows:
            yield InputBatch({}, 0, None, part.base_id + part.first, bad_rows=_taken(bad_rows))

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

    def _typed(self, part: Part, bad_rows: list[BadRow]) -> Iterator[pa.RecordBatch]:
        """Yield the columns of the processor, those that are passed, and the numbers of the rows in the file."""
        kinds = [*part.columns.data.items(), *part.columns.passed.items()]
        types = [(name, declared_type(text)) for name, text in kinds]
        chosen = list(dict.fromkeys(name for name, _ in kinds))
        block = UNKNOWN_BLOCK_BYTES if part.longest is None else max(BLOCK_BYTES, part.longest + 1)
        for piece, numbers in self._pieces(part, chosen, bad_rows, block):
            try:
                columns = [of_texts(piece.column(name), kind) for name, kind in types]
            except pa.ArrowInvalid:
                piece, numbers = self._without_misfits(part, piece, numbers, types, bad_rows)
                columns = [of_texts(piece.column(name), kind) for name, kind in types]
            arrays = [*columns, pa.array(numbers, pa.int64())]
            yield pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])

    def _without_misfits(
        self,
        part: Part,
        piece: pa.RecordBatch,
        numbers: Sequence[int],
        types: Sequence[tuple[str, pa.DataType]],
        bad_rows: list[BadRow],
    ) -> tuple[pa.RecordBatch, Sequence[int]]:
        """Return the rows whose values have the types.

        :raises InputError: a value has not, unless such rows are left out
        """
        bad: dict[int, InputError] = {}
        for name, kind in types:
            for i in misfits(piece.column(name), kind):
                value = reprlib.repr(piece.column(name)[i].as_py())
                origin = "as declared" if name in self._settings.types else "as in the first rows"
                bad[i] = InputError(
                    f"{part.path}: row {numbers[i] + 1} has {name!r} = {value}, expected {type_text(kind)} {origin}. "
                    f"Set inputs.schema: {{{name}: string}}, or another type."
                )
        for i, error in sorted(bad.items()):
            self._leave_out(part, numbers[i], error, bad_rows)
        kept = [i for i in range(piece.num_rows) if i not in bad]
        return piece.take(pa.array(kept, pa.int64())), [numbers[i] for i in kept]

    def _leave_out(self, part: Part, number: int, error: InputError, bad_rows: list[BadRow]) -> None:
        """Record a bad row.

        :raises InputError: bad rows are not left out
        """
        if not self._settings.skips_bad_rows:
            raise error
        bad_rows.append(BadRow(part.base_id + number, f"{part.path} row {number + 1}", str(error)))

    def _pieces(
        self, part: Part, chosen: Sequence[str], bad_rows: list[BadRow], block_bytes: int
    ) -> Iterator[tuple[pa.RecordBatch, Sequence[int]]]:
        """Yield columns as texts, with the numbers of their rows in the file."""
        # The parser counts the header.
        first = part.first - 1 if part.record else part.first - 2
        left_out: list[int] = []
        failed: list[InputError] = []

        def invalid(row: csv.InvalidRow) -> str:
            number = first + row.number
            error = InputError(
                f"{part.path}: row {number + 1} has {row.actual_columns} values, the header has "
                f"{row.expected_columns}: {row.text[:100]!r}. Quote values that contain the separator, or set "
                "inputs.delimiter."
            )
            if not self._settings.skips_bad_rows:
                failed.append(error)
                return "error"
            self._leave_out(part, number, error, bad_rows)
            left_out.append(number)
            return "skip"

        number = part.first
        try:
            for piece in self._parsed(part, chosen, block_bytes, invalid):
                numbers: Sequence[int] = range(number, number + piece.num_rows)
                if left_out:
                    skipped = set(left_out)
                    every = (i for i in count(number) if i not in skipped)
                    numbers = list(islice(every, piece.num_rows))
                number = numbers[-1] + 1 if numbers else number
                _check_utf8(part.path, piece)
                yield piece, numbers
        except pa.ArrowInvalid as error:
            raise failed[0] if failed else _named(part.path, error, block_bytes) from error

    def _parsed(
        self, part: Part, chosen: Sequence[str], block_bytes: int, invalid: Callable[[csv.InvalidRow], str]
    ) -> Iterator[pa.RecordBatch]:
        names = list(part.names) if part.record else None
        # The numbers of invalid rows are known to one thread only.
        read = csv.ReadOptions(column_names=names, block_size=block_bytes, use_threads=False)
        parse = csv.ParseOptions(
            delimiter=self._delimiter(part.path), newlines_in_values=True, invalid_row_handler=invalid
        )
        types = dict.fromkeys(chosen, pa.string())
        convert = csv.ConvertOptions(check_utf8=False, column_types=types, include_columns=list(chosen))
        # Of other parts, the plan has found the end of each record.
        is_checked = part.record > 0 or part.longest is not None
        stream: Any = part.stream if is_checked else ClosedQuotes(part.stream, self._delimiter(part.path))
        with csv.open_csv(stream, read, parse, convert) as reader:
            yield from reader


def _or_text(kind: str) -> str:
    """Return the type of a column, which is text if its first rows have no value."""
    return "string" if kind == "null" else kind


def _taken(rows: list[BadRow]) -> list[BadRow]:
    taken = rows[:]
    rows.clear()
    return taken


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
