"""JSON lines as input: one object per line. A field that a line does not have is null.

The processor gets numbers and booleans as tensors, other values as Python's. A field that is passed through to JSON
lines stays the text that it is. For other outputs it has the type of the first lines, which holds each value exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.column_types import JsonText
from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch
from airflow_provider_dtrain.train.inference.inputs.columns import values as tensor_or_list
from airflow_provider_dtrain.train.inference.inputs.json_parser import LineParser
from airflow_provider_dtrain.train.inference.inputs.json_values import as_type, guessed, guessed_exact
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.inputs.text_tables import Columns, FileStart, ShardText, lines_of
from airflow_provider_dtrain.train.inference.inputs.text_types import JSON, declared_type, widest

#: Lines that decide the types of a file's columns.
FIRST_LINES = 1000
#: What a conversion of values raises.
_MISFITS = (pa.ArrowException, OverflowError, TypeError, ValueError)


class Row(NamedTuple):
    """The object of a line."""

    #: Number of the row in its file from 0 on, and of its line from 1 on.
    number: int
    line: int
    values: Mapping[str, Any]
    #: The values as they were written; empty if no column needs them.
    texts: Mapping[str, str]


class JsonFormat:
    """Parses JSON lines."""

    name = "JSON lines"

    def __init__(self, settings: InputSettings) -> None:
        self._settings = settings
        for text in settings.types.values():
            declared_type(text)

    def start(self, path: str, stream: BinaryIO) -> FileStart:
        """Return the fields of the first lines."""
        part = ShardText(path, stream, Columns({}, {}), 0, 0, 0, (), skips_bad_rows=self._settings.skips_bad_rows)
        rows = list(islice(self._rows(part), FIRST_LINES))
        names = list(dict.fromkeys(name for row in rows for name in row.values))
        types = self._settings.types
        read = names if self._settings.columns is None else self._settings.columns
        data = {name: guessed([row.values.get(name) for row in rows]) for name in read if name not in types}
        passed = {name: _guessed_exact(name, rows) for name in self._guessed_passed()}
        return FileStart(tuple(names), Columns(data, passed), bool(rows or part.bad_rows))

    def common(self, starts: Sequence[tuple[str, FileStart]]) -> Columns:
        """Return the fields of all files.

        :raises InputError: a field that the settings name is in none of the first lines, and its type is not declared
        """
        types = self._settings.types
        found = dict.fromkeys(name for _, start in starts for name in start.names)
        read = self._settings.columns or list(dict.fromkeys([*found, *types]))
        named = [*read, *self._settings.passed]
        missing = [name for name in named if name not in found and name not in types]
        if missing:
            raise InputError(
                f"No file has the field {missing[0]!r} in its first {FIRST_LINES} lines, see {starts[0][0]}. Correct "
                f"its name, or declare it if it comes later: inputs.schema: {{{missing[0]}: json}}."
            )
        unread = [name for name in types if name not in named]
        if unread:
            raise InputError(f"inputs.schema has the field {unread[0]!r}, which inputs.columns does not read.")

        several = [start.columns for _, start in starts]
        data = {name: types.get(name) or widest((one.data.get(name) for one in several), JSON) for name in read}
        passed = {name: types.get(name, JSON) for name in self._settings.passed}
        for name in self._guessed_passed():
            passed[name] = widest((one.passed.get(name) for one in several), "string")
        return Columns(data, passed)

    def records(self, path: str, stream: BinaryIO) -> Iterator[tuple[int, bool]]:
        """Yield the bytes of each line, and whether it is not blank."""
        for line in lines_of(path, stream, 0):
            yield len(line), not _is_blank(line)

    def batches(self, part: ShardText, batch_size: int) -> Iterator[InputBatch]:
        """Yield the rows of a part."""
        rows = self._rows(part)
        while chosen := list(islice(rows, batch_size)):
            try:
                batch = self._batch(part, chosen)
            except _MISFITS:
                batch = self._batch(part, [row for row in chosen if self._fits(part, row)])
            yield batch

    # -- inside ----------------------------------------------------------------------------------------------------

    def _guessed_passed(self) -> list[str]:
        """Return the columns that are passed through with the type of the first lines."""
        if self._settings.writes_json:
            return []
        return [name for name in self._settings.passed if name not in self._settings.types]

    def _rows(self, part: ShardText) -> Iterator[Row]:
        """Yield the objects of a part's lines. Those that are not valid are left out, or fail the part."""
        parser = LineParser(keeps_texts=bool(self._settings.passed or self._settings.types))
        known = part.columns.data.keys() if self._settings.columns is None and part.columns.data else None
        number = part.first
        for index, line in enumerate(lines_of(part.path, part.stream, part.record), part.record + 1):
            if _is_blank(line):
                continue
            try:
                values, texts = parser.parse(line.decode("utf-8-sig" if index == 1 else "utf-8"))
                if known is not None and not values.keys() <= known:
                    raise _unknown_field(part.path, index, next(name for name in values if name not in known))
            except InputError as error:
                part.leave_out(number, f"line {index}", error)
            except (ValueError, RecursionError) as error:
                message = " ".join(str(error).split())[:200]
                refusal = InputError(f"{part.path}: line {index} is no JSON object: {message}")
                part.leave_out(number, f"line {index}", refusal)
            else:
                yield Row(number, index, values, texts)
            number += 1

    def _fits(self, part: ShardText, row: Row) -> bool:
        """Return whether the values of a row have the types of their columns. Other rows are left out.

        :raises InputError: a value has not, and such rows are not left out
        """
        for group in (part.columns.data, part.columns.passed):
            for name, kind in group.items():
                try:
                    self._column([row], name, kind, is_passed=group is part.columns.passed)
                except _MISFITS:
                    origin = "inputs.schema declares" if name in self._settings.types else "the first lines have"
                    error = InputError(
                        f"{part.path}: line {row.line} has {name!r} = {_text(row, name)[:100]}, {origin} {kind}. Set "
                        f"inputs.schema: {{{name}: json}}, which reads any value, or another type that fits."
                    )
                    part.leave_out(row.number, f"line {row.line}", error)
                    return False
        return True

    def _batch(self, part: ShardText, rows: Sequence[Row]) -> InputBatch:
        """Return rows as a batch. Raises like :meth:`_column`."""
        data: dict[str, Any] = {}
        for name, kind in part.columns.data.items():
            if kind == JSON:
                data[name] = [row.values.get(name) for row in rows]
            else:
                data[name] = tensor_or_list(self._column(rows, name, kind, is_passed=False), is_shared=False)
        passed = [self._column(rows, name, kind, is_passed=True) for name, kind in part.columns.passed.items()]
        return part.batch(data, passed, [row.number for row in rows])

    def _column(self, rows: Sequence[Row], name: str, kind: str, *, is_passed: bool) -> pa.Array:
        """Return the values of a field.

        :raises pyarrow.ArrowException, TypeError, ValueError, OverflowError: a value does not fit
        """
        values, texts = [row.values.get(name) for row in rows], [row.texts.get(name) for row in rows]
        is_exact = is_passed and name not in self._settings.types
        column = as_type(values, texts, declared_type(kind), is_exact=is_exact)
        # Only JSON lines hold JSON.
        return column.storage if isinstance(column.type, JsonText) and not self._settings.writes_json else column


def _guessed_exact(name: str, rows: Iterable[Row]) -> str:
    return guessed_exact([row.values.get(name) for row in rows], [row.texts.get(name) for row in rows])


def _text(row: Row, name: str) -> str:
    return row.texts.get(name) or json.dumps(row.values.get(name))


def _unknown_field(path: str, line: int, name: str) -> InputError:
    return InputError(
        f"{path}: line {line} has the field {name!r}, which the first {FIRST_LINES} lines of the files do not have. "
        f"Declare it: inputs.schema: {{{name}: json}}. Or name the fields to read in inputs.columns."
    )


def _is_blank(line: bytes) -> bool:
    return not line.strip()
