"""Images, tables and texts that rank 0 of a trial reported."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dtrain.core.media_names import MediaKind
from airflow_provider_dtrain.resources.bounds import Count, Id


@dataclass(frozen=True, kw_only=True)
class MediaItem:
    """One file of a series."""

    step: Count
    #: Number of the attempt that reported it.
    attempt: Id
    kind: MediaKind
    #: Path among the outputs of the trial.
    path: str
    size_bytes: Count
    at: datetime


@dataclass(frozen=True, kw_only=True)
class MediaSeries:
    """Files of one key in order of their steps. A later attempt replaces those of an earlier one at the same step."""

    key: str
    items: list[MediaItem]


@dataclass(frozen=True, kw_only=True)
class TrialMedia:
    """Media of a trial as of their last copy on the control side, in order of their keys."""

    series: list[MediaSeries]
    #: There are more files than an answer holds: those of the latest steps are in it.
    truncated: bool
