"""Tables in text files, CSV and JSON lines: one shard per file, read as a stream with the types of all files."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from airflow_provider_dtrain.train.errors import InputError, TrainError
from airflow_provider_dtrain.train.inference.inputs.batch import InputBatch
from airflow_provider_dtrain.train.inference.inputs.columns import chosen_schema, fitted, same_schema
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings, split_codec
from airflow_provider_dtrain.train.inference.inputs.sources import SourceFile, Sources, is_remote, local, unreadable
from airflow_provider_dtrain.train.inference.inputs.table_batches import input_batches
from airflow_provider_dtrain.train.inference.shards import SOURCE_ROWS, Shard

#: Files whose first lines are read at the same time.
START_THREADS = 8


@dataclass(frozen=True)
class Start:
    """The beginning of a file, which decides the types of its columns."""

    schema: pa.Schema
    has_rows: bool
    #: Chosen columns that no row of the beginning has.
    missing: frozenset[str] = frozenset()


class TextFormat(Protocol):
    """Parses one format."""

    name: str

    def start(self, path: str, stream: pa.NativeFile) -> Start:
        """Return the columns of a file, with types that its first rows have."""

    def pieces(self, path: str, stream: pa.NativeFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, with at least the columns of a schema."""


class TextReader:
    """Reads text files.

    The number of rows is not known before a file was read, so that row ids begin anew with each file.
    """

    def __init__(self, text_format: TextFormat, settings: InputSettings, sources: Sources) -> None:
        self._format = text_format
        self._settings = settings
        self._sources = sources

    def shards(self, files: Sequence[SourceFile]) -> list[Shard]:
        """Return one shard for each file that has rows."""
        with ThreadPoolExecutor(START_THREADS) as threads:
            starts = list(threads.map(self._start, files))
        if not any(start.has_rows for start in starts):
            raise InputError(f"The input is empty: {files[0].path} and {len(files) - 1} more files have no row.")
        missing = frozenset.intersection(*(start.missing for start in starts if start.has_rows))
        if missing:
            raise InputError(f"No file has the field {min(missing)!r} in its first lines, see {files[0].path}.")
        schema = self._common_schema(files, starts)
        text = base64.b64encode(schema.serialize().to_pybytes()).decode()
        numbered = [(i, file) for i, (file, start) in enumerate(zip(files, starts)) if start.has_rows]
        return [
            Shard(index, file.path, 0, 0, None, number * SOURCE_ROWS, {"version": file.content, "schema": text})
            for index, (number, file) in enumerate(numbered)
        ]

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the batches of a file."""
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(shard.details["schema"])))
        return input_batches(self._pieces(shard, schema), self._settings, shard.first_row, batch_size)

    def _pieces(self, shard: Shard, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        self._sources.check_version(shard)
        try:
            with text_stream(shard.source, self._sources) as stream:
                for piece in self._format.pieces(shard.source, stream, schema):
                    yield fitted(piece, schema)
        except TrainError:
            raise
        except Exception as error:
            raise self._unreadable(shard.source, error) from error

    def _start(self, file: SourceFile) -> Start:
        try:
            with text_stream(file.path, self._sources) as stream:
                return self._format.start(file.path, stream)
        except TrainError:
            raise
        except Exception as error:
            raise self._unreadable(file.path, error) from error

    def _common_schema(self, files: Sequence[SourceFile], starts: Sequence[Start]) -> pa.Schema:
        """Return the types that fit the first rows of all files.

        :raises InputError: the columns of two files differ
        """
        common: pa.Schema | None = None
        first = ""
        for file, start in zip(files, starts):
            if not len(start.schema) and not start.has_rows:
                continue
            schema = chosen_schema(start.schema, self._settings, file.path)
            bytes_in = [field.name for field in schema if pa.types.is_binary(field.type)]
            if bytes_in:
                raise InputError(f"{file.path}: column {bytes_in[0]!r} is no UTF-8 text. Convert the file to UTF-8.")
            if common is None:
                common, first = schema, file.path
                continue
            widest = _widest(common, schema)
            if widest is None:
                same_schema(common, first, schema, file.path)
            else:
                common = widest
        assert common is not None
        return pa.schema([(field.name, _without_null(field.type)) for field in common])

    def _unreadable(self, path: str, error: BaseException) -> InputError:
        return unreadable(path, f"{path} cannot be read as {self._format.name}", error)


def text_stream(path: str, sources: Sources) -> pa.NativeFile:
    """Return a stream of a file's bytes, without its compression."""
    file: Any = pa.PythonFile(sources.open(path), mode="r") if is_remote(path) else pa.OSFile(local(path))
    _, codec = split_codec(path)
    return pa.CompressedInputStream(file, codec) if codec else file


def widest_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of two inferred types without a change of meaning, else None."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = widest_type(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _widest_struct(one, other)
    return None


def _widest(one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    if sorted(one.names) != sorted(other.names):
        return None
    kinds = [(name, widest_type(one.field(name).type, other.field(name).type)) for name in one.names]
    return None if any(kind is None for _, kind in kinds) else pa.schema(kinds)


def _widest_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    fields = {field.name: field.type for field in one}
    for field in other:
        kind = widest_type(fields.get(field.name, pa.null()), field.type)
        if kind is None:
            return None
        fields[field.name] = kind
    return pa.struct(list(fields.items()))


def _without_null(kind: pa.DataType) -> pa.DataType:
    """Return a type in which columns without any value are texts."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_null(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_null(field.type)) for field in kind])
    return kind
