"""Parquet files as input: shards are ranges of rows, along row groups where these are small enough."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch
from airflow_provider_dtrain.train.inference.inputs.columns import chosen_schema, common_schema, fitted
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.inputs.sources import SourceFile, Sources, is_remote, local, no_rows
from airflow_provider_dtrain.train.inference.inputs.table_batches import input_batches, named_errors
from airflow_provider_dtrain.train.inference.shards import Shard, default_shard_rows

#: Limits of the default size of a shard, rows.
LEAST_ROWS, MOST_ROWS = 64, 16384
#: Rows are decoded in pieces of about this many bytes and at most this many rows, so that memory is bounded.
PIECE_BYTES, PIECE_ROWS = 16 * 1024 * 1024, 65536
#: Buffer of each column when a local file is read.
BUFFER_BYTES = 1024 * 1024
#: Footers that are read at the same time.
FOOTER_THREADS = 16


@dataclass(frozen=True)
class _Footer:
    """Facts of one file that the plan needs."""

    path: str
    content: str
    schema: pa.Schema
    group_rows: tuple[int, ...]

    @property
    def rows(self) -> int:
        return sum(self.group_rows)


class ParquetReader:
    """Reads row ranges of Parquet files."""

    def __init__(self, settings: InputSettings, sources: Sources) -> None:
        self._settings = settings
        self._sources = sources
        self._open_file: _OpenFile | None = None

    def shards(self, files: Sequence[SourceFile]) -> list[Shard]:
        """Return shards of row ranges. Row ids are row numbers of the whole input."""
        with ThreadPoolExecutor(FOOTER_THREADS) as threads:
            footers = list(threads.map(self._footer, files))
        common = common_schema((one.path, one.schema) for one in footers)
        total = sum(one.rows for one in footers)
        if not total:
            raise no_rows(files)
        most = self._settings.shard_rows or default_shard_rows(
            total, self._settings.batch_size, least=LEAST_ROWS, most=MOST_ROWS
        )
        shards: list[Shard] = []
        first_row = 0
        for one in footers:
            details = {"version": one.content}
            if one.schema != common:
                details["schema"] = base64.b64encode(common.serialize().to_pybytes()).decode()
            for start, stop in ranges(one.group_rows, most):
                shards.append(Shard(len(shards), one.path, start, stop, stop - start, first_row + start, details))
            first_row += one.rows
        return shards

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the batches of a shard."""
        pieces = self._pieces(shard, batch_size)
        return input_batches(pieces, self._settings, shard.first_row, batch_size)

    def _pieces(self, shard: Shard, batch_size: int) -> Iterator[pa.RecordBatch]:
        # After an error, the file is opened anew.
        file, self._open_file = self._open_file, None
        with named_errors(shard.source, f"Parquet ({shard.label})"):
            if file is None or file.path != shard.source:
                file = self._opened(shard)
            yield from file.rows(shard.start, shard.stop, batch_size)
            self._open_file = file

    def _opened(self, shard: Shard) -> _OpenFile:
        self._sources.check_version(shard)
        file = open_parquet(shard.source, self._sources)
        text = shard.details.get("schema")
        if text is None:
            schema = chosen_schema(file.schema_arrow, self._settings, shard.source)
        else:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
        return _OpenFile(shard.source, file, schema)

    def _footer(self, file: SourceFile) -> _Footer:
        with named_errors(file.path, "Parquet"), open_parquet(file.path, self._sources) as opened:
            facts = opened.metadata
            groups = tuple(facts.row_group(i).num_rows for i in range(facts.num_row_groups))
            schema = chosen_schema(opened.schema_arrow, self._settings, file.path)
            return _Footer(file.path, file.content, schema, groups)


class _OpenFile:
    """An open file, and the position in the row group that was read last."""

    def __init__(self, path: str, file: pq.ParquetFile, schema: pa.Schema) -> None:
        self.path = path
        self._file = file
        self._schema = schema
        facts = file.metadata
        counts = [facts.row_group(i).num_rows for i in range(facts.num_row_groups)]
        #: Row at which each row group begins, and the number of rows.
        self._starts = [0, *accumulate(counts)]
        self._group = -1
        #: Row of the file that the iterator yields next.
        self._position = 0
        self._iterator: Iterator[pa.RecordBatch] = iter(())
        self._left: pa.RecordBatch | None = None

    def rows(self, start: int, stop: int, batch_size: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range in pieces. A range that follows the last one costs no decoding twice."""
        if stop > self._starts[-1]:
            raise InputError(f"{self.path} has {self._starts[-1]} rows, the plan of this run has {stop} or more.")
        for group in range(len(self._starts) - 1):
            first, last = max(start, self._starts[group]), min(stop, self._starts[group + 1])
            if first < last:
                yield from self._rows_of_group(group, first, last, batch_size)

    def _rows_of_group(self, group: int, start: int, stop: int, batch_size: int) -> Iterator[pa.RecordBatch]:
        if group != self._group or start < self._position:
            self._iterator = self._decoded(group, batch_size)
            self._group, self._position, self._left = group, self._starts[group], None
        while self._position < stop:
            piece = self._left or next(self._iterator)
            skipped = min(max(0, start - self._position), piece.num_rows)
            taken = min(stop - self._position, piece.num_rows)
            self._position += taken
            self._left = piece.slice(taken) if taken < piece.num_rows else None
            if skipped < taken:
                yield fitted(piece.slice(skipped, taken - skipped), self._schema)

    def _decoded(self, group: int, batch_size: int) -> Iterator[pa.RecordBatch]:
        facts = self._file.metadata.row_group(group)
        row_bytes = max(1, facts.total_byte_size // max(1, facts.num_rows))
        size = max(batch_size, min(PIECE_ROWS, PIECE_BYTES // row_bytes))
        names = self._schema.names
        every = names == self._file.schema_arrow.names
        found: Iterator[pa.RecordBatch] = self._file.iter_batches(
            batch_size=size, row_groups=[group], columns=None if every else names
        )
        return found


def open_parquet(path: str, sources: Sources) -> pq.ParquetFile:
    """Open a file so that only the chosen columns are fetched."""
    if not is_remote(path):
        return pq.ParquetFile(local(path), buffer_size=BUFFER_BYTES, pre_buffer=False)
    # Arrow joins the ranges of a row group's columns into few requests.
    source: Any = sources.open(path, is_random=True)
    return pq.ParquetFile(source, pre_buffer=True)


def ranges(group_rows: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield the row ranges of a file's shards.

    Row groups that follow each other share a shard as long as it has at most ``most`` rows. Larger ones are cut.
    """
    start = stop = 0
    for count in group_rows:
        if stop > start and stop - start + count > most:
            yield start, stop
            start = stop
        stop += count
        while stop - start > most:
            yield start, start + most
            start += most
    if stop > start:
        yield start, stop
