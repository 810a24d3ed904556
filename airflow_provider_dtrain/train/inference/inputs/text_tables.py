"""Tables in text files, CSV and JSON lines: shards are ranges of rows, and all files have the same types."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from airflow_provider_dtrain.train.errors import InputError
from airflow_provider_dtrain.train.inference.inputs.batch import BadRow, InputBatch
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings, split_codec
from airflow_provider_dtrain.train.inference.inputs.sources import SourceFile, Sources, is_remote, local, no_rows
from airflow_provider_dtrain.train.inference.inputs.table_batches import named_errors
from airflow_provider_dtrain.train.inference.inputs.text_cuts import Cuts, cuts_of
from airflow_provider_dtrain.train.inference.shards import SOURCE_ROWS, Shard, default_shard_rows
from airflow_provider_dtrain.train.values import JsonObject

log = logging.getLogger(__name__)

#: Files that are read at the same time while the plan is made.
PLAN_THREADS = 8
#: Limits of the default size of a shard, rows.
LEAST_ROWS, MOST_ROWS = 8, 16384
#: A file that has less than this share of the input's bytes is one shard: the input has enough others.
SHARDS = 256
#: Longest line, so that a file of another format does not fill the memory.
LINE_BYTES = 64 * 1024 * 1024
#: Compressed files from this size on are named in the log, because one rank has to read them.
NOTED_BYTES = 16 * 1024 * 1024
#: Buffer of a file that is read line by line, bytes.
BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Columns:
    """Columns that are read, each with the text of its type."""

    #: Those that the processor gets, and those that are passed through.
    data: Mapping[str, str]
    passed: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        """All names."""
        return list(dict.fromkeys([*self.data, *self.passed]))

    def to_dict(self) -> JsonObject:
        """Return the columns as plain JSON."""
        return {"data": dict(self.data), "passed": dict(self.passed)}


@dataclass(frozen=True)
class FileStart:
    """The beginning of a file, which decides the types of its columns."""

    #: All columns of a CSV file in its order; the fields that the first lines of JSON lines have.
    names: tuple[str, ...]
    columns: Columns
    has_rows: bool


@dataclass(frozen=True)
class ShardText:
    """The bytes of one shard, and its rows that cannot be read."""

    #: Path or URL, for messages.
    path: str
    stream: BinaryIO
    columns: Columns
    #: Number of the first row in its file, and row id of row 0 of the file.
    first: int
    base_id: int
    #: Number of the first record in its file. 0: the part begins with the header, if the format has one.
    record: int
    #: All columns of the file, in its order.
    names: tuple[str, ...]
    #: Bytes of the longest record of the file; None: not known.
    longest: int | None = None
    #: Whether rows that cannot be read are left out. Otherwise the first one fails the part.
    skips_bad_rows: bool = False
    #: Those that were left out since the last batch.
    bad_rows: list[BadRow] = field(default_factory=list)

    def leave_out(self, number: int, place: str, error: InputError) -> None:
        """Leave out a row.

        :param number: row in the file
        :param place: the row or the line, for messages
        :raises InputError: bad rows are not left out
        """
        if not self.skips_bad_rows:
            raise error
        self.bad_rows.append(BadRow(self.base_id + number, f"{self.path} {place}", str(error)))

    def batch(self, data: dict[str, Any], passed: Sequence[pa.Array], numbers: Sequence[int]) -> InputBatch:
        """Return rows as a batch, with those that were left out before or between them.

        :param passed: the columns that are passed through
        :param numbers: of the rows in the file
        """
        first = numbers[0] if numbers else self.first
        is_whole = not numbers or numbers[-1] - first < len(numbers)
        bad_rows = self.bad_rows[:]
        self.bad_rows.clear()
        return InputBatch(
            data,
            len(numbers),
            pa.RecordBatch.from_arrays(passed, names=list(self.columns.passed)) if passed else None,
            self.base_id + first,
            row_ids=None if is_whole else [self.base_id + number for number in numbers],
            bad_rows=bad_rows,
        )


class TextFormat(Protocol):
    """Parses one format."""

    name: str

    def start(self, path: str, stream: BinaryIO) -> FileStart:
        """Return the columns of a file, with types that its first rows have."""

    def common(self, starts: Sequence[tuple[str, FileStart]]) -> Columns:
        """Return the columns of all files.

        :param starts: path and start of each file that has columns
        """

    def records(self, path: str, stream: BinaryIO) -> Iterator[tuple[int, bool]]:
        """Yield the bytes of each record of a file, and whether it is a row: no header, no blank line."""

    def batches(self, part: ShardText, batch_size: int) -> Iterator[InputBatch]:
        """Yield the rows of a part in batches, without those that it leaves out."""


class TextReader:
    """Reads text files.

    A file that is large in proportion to the input is read once to find the rows at which it can be cut. Other files,
    and compressed ones, are one shard each. Row ids begin anew with each file, because not every file's rows are known.
    """

    def __init__(self, text_format: TextFormat, settings: InputSettings, sources: Sources) -> None:
        self._format = text_format
        self._settings = settings
        self._sources = sources

    def shards(self, files: Sequence[SourceFile]) -> list[Shard]:
        """Return the shards of all files that have rows."""
        total = sum(file.size for file in files)
        with ThreadPoolExecutor(PLAN_THREADS) as threads:
            starts = list(threads.map(self._start, files))
            if not any(start.has_rows for start in starts):
                raise no_rows(files)
            named = [(file.path, start) for file, start in zip(files, starts) if start.names]
            columns = self._format.common(named)
            cuts = list(threads.map(lambda file: self._cuts(file, total), files))
        size = self._settings.shard_rows or default_shard_rows(
            sum(one.rows for one in cuts if one is not None),
            self._settings.batch_size,
            least=LEAST_ROWS,
            most=MOST_ROWS,
        )
        shards: list[Shard] = []
        for number, (file, start, one) in enumerate(zip(files, starts, cuts)):
            details = {"version": file.content, **columns.to_dict(), "names": list(start.names)}
            base = number * SOURCE_ROWS
            if one is None and start.has_rows:
                shards.append(Shard(len(shards), file.path, 0, 0, None, base, details))
            for first, stop, place, end in () if one is None else one.ranges(size):
                own = {"offset": place.offset, "size": end - place.offset, "record": place.record}
                facts = {**details, **own, "longest": one.longest if one is not None else None}
                shards.append(Shard(len(shards), file.path, first, stop, stop - first, base + first, facts))
        if not shards:
            raise no_rows(files)
        return shards

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the batches of a shard."""
        self._sources.check_version(shard)
        details = shard.details
        with self._open(shard.source, details.get("offset", 0), details.get("size")) as stream:
            part = ShardText(
                path=shard.source,
                stream=stream,
                columns=Columns(details["data"], details["passed"]),
                first=shard.start,
                base_id=shard.first_row - shard.start,
                record=details.get("record", 0),
                names=tuple(details["names"]),
                longest=details.get("longest"),
                skips_bad_rows=self._settings.skips_bad_rows,
            )
            yield from self._format.batches(part, batch_size)
            if part.bad_rows:
                yield part.batch({}, (), ())

    def _start(self, file: SourceFile) -> FileStart:
        with self._open(file.path) as stream:
            return self._format.start(file.path, stream)

    def _cuts(self, file: SourceFile, total: int) -> Cuts | None:
        """Return the places at which a file can be cut, or None: it is one shard."""
        fixed = self._settings.shard_rows
        is_cut = fixed is not None or file.size * SHARDS > total
        codec = split_codec(file.path)[1]
        if codec is not None and is_cut and file.size > NOTED_BYTES:
            log.warning("%s is one shard for one rank, because a %s file cannot be cut", file.path, codec)
        if codec is not None or not is_cut:
            return None
        stride = fixed or self._settings.batch_size or LEAST_ROWS
        with self._open(file.path) as stream:
            return cuts_of(self._format.records(file.path, stream), stride, is_fixed=fixed is not None)

    @contextmanager
    def _open(self, path: str, offset: int = 0, size: int | None = None) -> Iterator[BinaryIO]:
        with named_errors(path, self._format.name), text_stream(path, self._sources, offset, size) as stream:
            yield stream


def text_stream(path: str, sources: Sources, offset: int = 0, size: int | None = None) -> BinaryIO:
    """Return a buffered stream of a file's bytes, without its compression.

    :param offset: first byte
    :param size: number of bytes; None: up to the end
    """
    _, codec = split_codec(path)
    if codec is not None:
        file: Any = pa.PythonFile(sources.open(path), mode="r") if is_remote(path) else pa.OSFile(local(path))
        return io.BufferedReader(pa.CompressedInputStream(file, codec), BUFFER_BYTES)
    raw: Any = sources.open(path)
    raw.seek(offset)
    return io.BufferedReader(_Range(raw, size), BUFFER_BYTES)


def lines_of(path: str, stream: BinaryIO, record: int) -> Iterator[bytes]:
    """Yield the lines of a part with their ends.

    :param record: number of the first line in the file
    :raises InputError: a line is too long
    """
    while line := stream.readline(LINE_BYTES + 1):
        if len(line) > LINE_BYTES:
            raise InputError(
                f"{path}: line {record + 1} is longer than {LINE_BYTES >> 20} MiB. The format has one row per line."
            )
        yield line
        record += 1


class _Range(io.RawIOBase):
    """A stream that ends after a number of bytes."""

    def __init__(self, file: BinaryIO, size: int | None) -> None:
        self._file = file
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._left]
        count: int = self._file.readinto(view) if len(view) else 0  # type: ignore[attr-defined]
        if self._left is not None:
            self._left -= count
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
