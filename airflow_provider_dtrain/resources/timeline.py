"""Timelines of trials."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dtrain.core.lifecycle.timeline import TimelineEntry


@dataclass(frozen=True, kw_only=True)
class TrialTimeline:
    """Everything that happened to a trial, oldest first."""

    entries: list[TimelineEntry]
