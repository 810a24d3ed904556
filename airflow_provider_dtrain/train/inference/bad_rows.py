"""Rows that a processor cannot compute: they are found by halves, so that the other rows have results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_dtrain.train.errors import OutputError, ResultRowsError, SchemaError, SetupError
from airflow_provider_dtrain.train.inference.inputs.batch import BadRow, InputBatch

#: Texts of errors after which a process cannot use its device any longer.
_BROKEN_DEVICE = re.compile(r"CUDA error|device-side assert|illegal memory access", re.IGNORECASE)
#: Processes a batch and returns its result.
Process = Callable[[InputBatch], Any]


def isolated(batch: InputBatch, process: Process, label: str) -> Iterator[tuple[InputBatch, Any]]:
    """Yield the parts of a batch that can be computed, in order, each with its result.

    A part without a result has one row, and names it in ``bad_rows``. A batch with k such rows of n takes about
    2 k log2(n) calls of the processor.

    :param process: raises an exception if it cannot compute the rows
    :param label: name of the shard
    :raises Exception: that of the whole batch, if each of its rows alone can be computed, or if it has no columns
    """
    try:
        yield batch, process(batch)
        return
    except Exception as error:
        if not batch.has_columns or _ends_the_run(error):
            raise
        if batch.rows == 1:
            yield _without_result(batch, error, label), None
            return
        first = error
    parts = list(_halves(batch, process, label))
    if not any(part.bad_rows for part, _ in parts):
        # It is not the fault of a row, and the results of other batches would differ in the last bits.
        raise first
    yield from parts


def _ends_the_run(error: Exception) -> bool:
    """Return whether an error is not about rows: a setting is wrong, or every later call on this device fails."""
    is_setting = isinstance(error, (SetupError, OutputError)) and not isinstance(error, (ResultRowsError, SchemaError))
    return is_setting or _BROKEN_DEVICE.search(str(error)) is not None


def _halves(batch: InputBatch, process: Process, label: str) -> Iterator[tuple[InputBatch, Any]]:
    middle = batch.rows // 2
    for start, stop in ((0, middle), (middle, batch.rows)):
        yield from isolated(part_of(batch, start, stop), process, label)


def part_of(batch: InputBatch, start: int, stop: int) -> InputBatch:
    """Return some rows of a batch of columns. Its values are not copied."""
    return replace(
        batch,
        data={name: values[start:stop] for name, values in batch.data.items()},
        rows=stop - start,
        passed=None if batch.passed is None else batch.passed.slice(start, stop - start),
        first_row=batch.ids[start],
        row_ids=None if batch.row_ids is None else batch.row_ids[start:stop],
        bad_rows=(),
    )


def copied_columns(data: Any) -> Any:
    """Return columns that a processor may change without an effect on those of the batch."""
    if not isinstance(data, Mapping):
        return data
    return {name: values.clone() if hasattr(values, "clone") else list(values) for name, values in data.items()}


def _without_result(batch: InputBatch, error: Exception, label: str) -> InputBatch:
    row = BadRow(batch.ids[0], label, f"{type(error).__name__}: {error}")
    return replace(batch, rows=0, bad_rows=(row,))
