"""Checkpoints of trials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CheckpointLine:
    """A checkpoint of a trial."""

    checkpoint: int
    step: int
    host: str
    path: str
    #: In words.
    size: str
    metrics: dict[str, Any]
    #: Location of its copy.
    copy: str | None
    removed: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class RefusedCheckpoint:
    """A checkpoint whose path is outside the configured places."""

    step: int
    host: str
    reported: str
    refused: str | None
