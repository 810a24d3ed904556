"""Columns that have only nulls in some parts: these parts get the type that the column has in the others.

A rank cannot know it when it writes such a part. Readers of the folder could not read parts of several types.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_dtrain.train.errors import OutputFolderError
from airflow_provider_dtrain.train.files.digests import describe
from airflow_provider_dtrain.train.inference.column_types import parse_type
from airflow_provider_dtrain.train.inference.ledger import FinishedShard, Ledger, merged_schema
from airflow_provider_dtrain.train.inference.output_folder import explained
from airflow_provider_dtrain.train.inference.outputs.parquet import GROUP_ROWS


def with_types(ledger: Ledger, entries: Iterable[FinishedShard]) -> list[FinishedShard]:
    """Return the entries, with new parts for those that lack the type of a column. Rank 0 alone calls it."""
    entries = list(entries)
    schema = merged_schema(entries)
    return [one if one.schema in ({}, schema) else _retyped(ledger, one, schema) for one in entries]


def _retyped(ledger: Ledger, entry: FinishedShard, schema: Mapping[str, str]) -> FinishedShard:
    place = ledger.place_of(entry)
    content = ledger.folder.read(place) if place is not None else None
    if content is None:
        raise OutputFolderError(f"The part {entry.part} of {ledger.folder.location} has vanished. Run again.")
    table = pq.ParquetFile(io.BytesIO(content)).read()
    wanted = pa.schema([(name, parse_type(text)) for name, text in schema.items()])
    folder = ledger.folder
    with folder.scratch() as path, explained(folder.location):
        pq.write_table(table.cast(wanted), path, row_group_size=GROUP_ROWS)
        written = describe(path)
        # Until the new entry is there, the shard counts as missing: no crash leaves an entry of another part.
        folder.remove(entry.name)
        folder.deliver(path, ledger.delivery_name(entry.shard))
    part = ledger.part_name(entry.shard)
    size, sha256 = written["size_bytes"], written["sha256"]
    new = replace(entry, run=ledger.run, part=part, size=size, sha256=sha256, schema=dict(schema))
    ledger.add(new)
    return new
