"""Batches of tables: cut to the batch size, with their columns as tensors or lists, and errors with their file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from airflow_provider_dtrain.train.errors import TrainError
from airflow_provider_dtrain.train.inference.column_types import type_text
from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch
from airflow_provider_dtrain.train.inference.inputs.columns import values
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.inputs.sources import unreadable


@contextmanager
def named_errors(path: str, kind: str) -> Iterator[None]:
    """Raise the errors of libraries as those of a file that cannot be read as a kind."""
    try:
        yield
    except TrainError:
        raise
    except Exception as error:
        raise unreadable(path, f"{path} cannot be read as {kind}", error) from error


def input_batches(
    pieces: Iterable[pa.RecordBatch], settings: InputSettings, first_row: int, batch_size: int
) -> Iterator[InputBatch]:
    """Yield the rows of pieces in batches of one size. Only the last batch may be smaller."""
    for rows in recut(pieces, batch_size):
        names = rows.schema.names if settings.columns is None else settings.columns
        data = {name: values(rows.column(name), is_shared=name in settings.passed) for name in names}
        passed = rows.select(list(settings.passed)) if settings.passed else None
        maps = {name: kind for name in names if "map<" in type_text(kind := rows.schema.field(name).type)}
        yield InputBatch(data, rows.num_rows, passed, first_row, maps=maps)
        first_row += rows.num_rows


def recut(pieces: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of pieces in record batches of ``size`` rows. Only rows that cross pieces are copied."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for piece in pieces:
        start = 0
        while start < piece.num_rows:
            part = piece.slice(start, size - count)
            start += part.num_rows
            waiting.append(part)
            count += part.num_rows
            if count == size:
                yield _joined(waiting)
                waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    arrays = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(parts[0].num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=parts[0].schema)
