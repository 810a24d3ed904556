"""Shards of a batch inference."""

from __future__ import annotations

from typing import Literal

from airflow_provider_dtrain.api.models.common import Model


class ShardTrouble(Model):
    """A shard that failed or was set aside."""

    shard: int
    #: Source and rows in words.
    label: str
    state: Literal["failed", "skipped"]
    #: Message of the latest error.
    error: str
    #: Failures that ranks reported.
    failures: int


class Shards(Model):
    """Shards of a trial that is a batch inference, and its progress."""

    #: 0: the trial is no batch inference, or its ranks have not counted the shards yet.
    total: int
    #: One letter per shard in the order of the input: d done, r running, w waiting, f failed, s set aside. Empty when
    #: there are too many shards.
    states: str
    #: State -> number of shards.
    done: int
    running: int
    waiting: int
    failed: int
    skipped: int
    #: Rows of the whole input; None: not known.
    rows: int | None
    rows_done: int
    #: Rows without a result, because they could not be read or computed.
    rows_bad: int
    #: From 0 to 1.
    share: float
    rows_per_s: float | None
    #: Seconds until the last shard ends; None: not known, or nothing is left.
    eta_s: float | None
    #: The progress in words.
    words: str
    #: Output folder, and what happens to bad rows.
    location: str
    on_bad_row: Literal["fail", "skip", "mark"]
    #: Latest first, at most 100.
    troubles: list[ShardTrouble]
