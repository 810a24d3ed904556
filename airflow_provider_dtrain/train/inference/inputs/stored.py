"""Files as input: one class for all formats, which lists the files and calls the reader of their format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from airflow_provider_dtrain.train.inference.inputs.batch import Input, InputBatch
from airflow_provider_dtrain.train.inference.inputs.file_reader import FileReader, image_reader
from airflow_provider_dtrain.train.inference.inputs.listing import identity_of, list_input
from airflow_provider_dtrain.train.inference.inputs.settings import InputSettings
from airflow_provider_dtrain.train.inference.inputs.sources import SourceFile, Sources, is_remote
from airflow_provider_dtrain.train.inference.libraries import require
from airflow_provider_dtrain.train.inference.shards import InputPlan, Shard, rows_of


class FormatReader(Protocol):
    """Reads files of one format."""

    def shards(self, files: Sequence[SourceFile]) -> list[Shard]:
        """Return the shards of files, whose rows follow each other in this order.

        :raises InputError: a file cannot be read, the columns of two files differ, or there is no row
        """

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the batches of a shard."""


class StoredInput(Input):
    """Rows of files on this host or behind URLs.

    Only :meth:`plan` looks at all files. The other ranks learn the format from the shards.
    """

    def __init__(self, settings: InputSettings, sources: Sources) -> None:
        self._settings = settings
        self._sources = sources
        self._readers: dict[str, FormatReader] = {}

    def plan(self) -> InputPlan:
        """Return the division into shards."""
        kind, files = list_input(self._settings, self._sources)
        found = self._reader(kind).shards(files)
        shards = tuple(replace(shard, details={**shard.details, "format": kind}) for shard in found)
        return InputPlan(shards, identity_of(kind, self._settings, files, rows_of(shards)))

    def prepare(self, shards: Sequence[Shard]) -> None:
        """Import the readers of the shards' formats, and the clients of their storages."""
        for kind in {str(shard.details["format"]) for shard in shards}:
            self._reader(kind)
        for source in {shard.source.partition("://")[0]: shard.source for shard in shards}.values():
            if is_remote(source):
                self._sources.system(source)

    def batches(self, shard: Shard, batch_size: int) -> Iterator[InputBatch]:
        """Yield the batches of a shard in order."""
        return self._reader(str(shard.details["format"])).batches(shard, batch_size)

    def _reader(self, kind: str) -> FormatReader:
        if kind not in self._readers:
            self._readers[kind] = _open_reader(kind, self._settings, self._sources)
        return self._readers[kind]


def _open_reader(kind: str, settings: InputSettings, sources: Sources) -> FormatReader:
    """Return the reader of a format. Only its own libraries are imported.

    :raises InputError: a setting is for other formats
    """
    settings.check_format(kind)
    if kind == "images":
        return image_reader(settings, sources)
    if kind == "files":
        return FileReader(settings, sources, "bytes", None)
    require("pyarrow", f"Reading {kind} files")
    if kind == "parquet":
        from airflow_provider_dtrain.train.inference.inputs.parquet import ParquetReader

        return ParquetReader(settings, sources)
    from airflow_provider_dtrain.train.inference.inputs.text_tables import TextReader

    if kind == "csv":
        from airflow_provider_dtrain.train.inference.inputs.csv_format import CsvFormat

        return TextReader(CsvFormat(settings), settings, sources)
    if kind == "text":
        from airflow_provider_dtrain.train.inference.inputs.line_format import LineFormat

        return TextReader(LineFormat(settings), settings, sources)
    from airflow_provider_dtrain.train.inference.inputs.json_format import JsonFormat

    return TextReader(JsonFormat(settings), settings, sources)
