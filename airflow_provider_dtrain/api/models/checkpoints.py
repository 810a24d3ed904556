"""Checkpoints and outputs of a trial."""

from __future__ import annotations

from datetime import datetime

from airflow_provider_dtrain.api.models.common import Model, Number


class Download(Model):
    """A copy, and the reason if the API server cannot send it."""

    possible: bool
    #: Why not, with the command that gets it; empty: it can.
    reason: str
    #: Number of files in the archive; None: unknown before the download.
    files: int | None


class Checkpoint(Model):
    """One checkpoint."""

    checkpoint_id: int
    trial_id: int
    #: Number of the attempt.
    attempt: int
    step: int
    host: str
    #: Of its copy, else of the original.
    location: str
    size_bytes: int | None
    sha256: str | None
    metrics: dict[str, Number]
    at: datetime
    removed_at: datetime | None
    #: Reason why it is not used: its path is outside the configured places.
    refused: str | None
    #: It has the best value of the searcher's metric in its trial.
    is_best: bool
    download: Download


class Checkpoints(Model):
    """All checkpoints of a trial, oldest first."""

    rows: list[Checkpoint]


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
