"""Checkpoints of trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_dtrain.resources.bounds import Count, Id


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """One checkpoint of a trial."""

    checkpoint_id: Id
    trial_id: int
    #: Number of the attempt.
    attempt: int
    step: Count
    host: str
    #: Of the original.
    path: str
    #: Location of its copy; None: it has none.
    copy_url: str | None
    size_bytes: int | None
    sha256: str | None
    metrics: Mapping[str, Any]
    at: datetime
    removed_at: datetime | None
    #: Reason why it is not used: its path is outside the configured places.
    refused: str | None
    #: It has the best value of the searcher's metric in its trial.
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class TrialCheckpoints:
    """All checkpoints of a trial, oldest first, with removed and refused ones."""

    rows: list[StoredCheckpoint]
