"""Texts about the end of a trial, for the command line and for pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.core.search.names import length_text
from airflow_provider_dtrain.core.search.trial_progress import TrialProgress


def units_of(searcher: Mapping[str, Any] | None) -> str:
    """Return the unit of a search's lengths of training: ``batches``, ``records``, ``epochs`` or a time metric.

    :param searcher: section of the configuration
    """
    searcher = searcher or {}
    named = [name for name, count in (searcher.get("max_length") or {}).items() if count is not None]
    return str((named or [searcher.get("time_metric") or "units"])[0])


def rung_text(rung: int | None, lengths: Sequence[int], units: str) -> str:
    """Return the rung of a trial's last report with its length of training, empty before the first report.

    :param lengths: of the rungs of its bracket
    """
    if rung is None:
        return ""
    length = f" ({length_text(lengths[rung], {'max_length': {units: 1}})})" if rung < len(lengths) else ""
    return f" at rung {rung}{length}"


def progress_text(progress: TrialProgress) -> str:
    """Return a progress such as ``1,200 of 5,000 batches (24 %)``, or ``1,200 batches`` without a planned length."""
    if progress.total is None:
        return f"{progress.done:,} {progress.unit}"
    share = "" if progress.share is None else f" ({math.floor(progress.share * 100)} %)"
    return f"{progress.done:,} of {progress.total:,} {progress.unit}{share}"


def end_text(state: str, stopped_by: str | None, failure: Mapping[str, Any] | None, at_rung: str) -> str | None:
    """Return why a trial has ended early, None if it has not.

    :param stopped_by: the user who requested the stop; None: the searcher stopped it
    :param at_rung: see :func:`rung_text`
    """
    if state == "stopped":
        return f"stopped by {stopped_by or f'the searcher{at_rung}'}"
    return str((failure or {}).get("message") or "").partition("\n")[0] or None
