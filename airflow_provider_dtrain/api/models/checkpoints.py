"""Checkpoints and outputs of a trial."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dtrain.api.models.common import Model
from airflow_provider_dtrain.resources.checkpoints import StoredCheckpoint


class Download(Model):
    """A copy, and the reason if the API server cannot send it."""

    possible: bool
    #: Why not, with the command that gets it; empty: it can.
    reason: str
    #: Number of files in the archive; None: unknown before the download.
    files: int | None


@dataclass(frozen=True, kw_only=True)
class DownloadableCheckpoint(StoredCheckpoint):
    """A checkpoint, and whether the API server can send it."""

    download: Download


@dataclass(frozen=True, kw_only=True)
class DownloadableCheckpoints:
    """All checkpoints of a trial, oldest first, with removed and refused ones."""

    rows: list[DownloadableCheckpoint]


class Output(Model):
    """A file that a script without the library wrote."""

    path: str
    size_bytes: int
    at: datetime
    download: Download


class Outputs(Model):
    """Copies of a trial's outputs on the control side."""

    rows: list[Output]
    #: More files exist than the list holds.
    truncated: bool
