"""First results of a batch inference."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dtrain.resources.bounds import Count


@dataclass(frozen=True, kw_only=True)
class ResultColumn:
    """A column of the results."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row of the input that could not be read or computed."""

    shard: Count
    #: Row id.
    row: Count
    #: File, or file and line.
    name: str
    error: str


@dataclass(frozen=True, kw_only=True)
class ResultPreview:
    """First rows of the shard that was finished first, as short texts. Without a report there are no columns."""

    #: The first ones.
    columns: list[ResultColumn]
    columns_in_all: Count
    #: A null is None.
    rows: list[list[str | None]]
    #: Number and name of the shard.
    shard: Count
    label: str
    #: The first ones of the shards that were finished last, at most 100.
    bad_rows: list[BadRow]
