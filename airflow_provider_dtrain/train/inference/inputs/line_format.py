"""Plain lines as input: each line of a file, also an empty one, is a row with the column ``text``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import BinaryIO

import pyarrow as pa

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.inputs.text_tables import Columns, FileStart, ShardText, lines_of

#: The only column.
COLUMN = "text"


class LineFormat:
    """Parses lines. They end with a line feed, with or without a carriage return before it."""

    name = "lines"

    def __init__(self, settings: InputSettings) -> None:
        self._passed = settings.passed
        unknown = {*(settings.columns or ()), *settings.passed} - {COLUMN}
        if unknown:
            raise InputError(f"Inputs of format text have only the column {COLUMN!r}, got {min(unknown)!r}.")

    def start(self, path: str, stream: BinaryIO) -> FileStart:
        """Return the column, and whether the file has a line."""
        return FileStart((COLUMN,), Columns({COLUMN: "string"}, {}), bool(stream.read(1)))

    def common(self, starts: Sequence[tuple[str, FileStart]]) -> Columns:
        """Return the column."""
        return Columns({COLUMN: "string"}, dict.fromkeys(self._passed, "string"))

    def records(self, path: str, stream: BinaryIO) -> Iterator[tuple[int, bool]]:
        """Yield the bytes of each line. Each one is a row."""
        for line in lines_of(path, stream, 0):
            yield len(line), True

    def batches(self, part: ShardText, batch_size: int) -> Iterator[InputBatch]:
        """Yield the lines of a part, without their ends."""
        rows = self._rows(part)
        while chosen := list(islice(rows, batch_size)):
            numbers, texts = [number for number, _ in chosen], [text for _, text in chosen]
            passed = [pa.array(texts, pa.string())] if self._passed else []
            yield part.batch({COLUMN: texts}, passed, numbers)

    @staticmethod
    def _rows(part: ShardText) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines_of(part.path, part.stream, part.record), part.first):
            try:
                text = line.decode("utf-8-sig" if number == 0 else "utf-8")
            except UnicodeDecodeError as error:
                message = f"{part.path}: line {number + 1} is not UTF-8: {error.reason} at its byte {error.start}"
                part.leave_out(number, f"line {number + 1}", InputError(message))
            else:
                yield number, text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
