"""Rows of tables of trials."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.models.trials import TrialRow
from airflow_provider_dtrain.api.rows import number, point
from airflow_provider_dtrain.core.lifecycle.follower_text import reason_text
from airflow_provider_dtrain.core.lifecycle.trial_text import end_text, rung_text
from airflow_provider_dtrain.store.queries.tasks import task_ref
from airflow_provider_dtrain.store.records.pages import TrialEntry


def trial_row(call: Call, entry: TrialEntry, units: str) -> TrialRow:
    """Return a trial as a row of a table.

    :param units: unit of its search's lengths of training
    """
    return TrialRow(**trial_fields(call, entry, units))


def trial_fields(call: Call, entry: TrialEntry, units: str) -> dict[str, Any]:
    """Return the fields of :class:`TrialRow`."""
    view = entry.view
    names = (
        "trial_id",
        "number",
        "state",
        "best_step",
        "bracket",
        "rung",
        "attempts",
        "restarts",
        "created_at",
        "ended_at",
    )
    reason, position = _reason(call, entry, units)
    best = _result_metric(view.result) if view.best_metric is None else view.best_metric
    return {
        **{name: getattr(view, name) for name in names},
        "name": name_of(call, entry),
        "display_name": entry.labels.display_name,
        "hparams": dict(view.hparams) if view.is_drawn else {},
        "best_metric": number(best),
        "units": entry.units,
        "epochs": point(entry.epochs),
        "progress": entry.progress,
        "duration_s": _duration_s(entry, call.store.db.now()),
        "reason": reason,
        "position": position,
        "task": task_ref(view.key),
        "is_current": not (view.is_cleared or view.is_of_older_plan),
        "description": entry.labels.description,
        "tags": list(entry.labels.tags),
    }


def name_of(call: Call, entry: TrialEntry) -> str:
    """Return the name of a trial: its number and the hyperparameters that differ between trials."""
    view = entry.view
    task = (view.key.task_id, view.key.map_index)
    return call.names.of_trial(call.store, view.config_id, view.number, view.hparams, task, is_drawn=view.is_drawn)


def _result_metric(result: Mapping[str, Any] | None) -> float | None:
    found = (result or {}).get("metric")
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _duration_s(entry: TrialEntry, now: datetime) -> float | None:
    if entry.started_at is None:
        return None
    # The clock of the store may have been set back.
    return max(0.0, ((entry.view.ended_at or now) - entry.started_at).total_seconds())


def _reason(call: Call, entry: TrialEntry, units: str) -> tuple[str | None, int | None]:
    """Return why a trial waits or has ended early, and its place in the queue."""
    view, task = entry.view, entry.task
    if task is not None and view.ended_at is None:
        silence = call.store.queue_view.silence(task)
        waits = task.position is not None
        words = reason_text(task.reason, silence, waits=waits, paused=task.paused, trial_id=view.trial_id)
        return words, None if silence.is_loss else task.position
    if view.is_of_older_plan or view.is_cleared:
        return "its experiment was planned anew" if view.is_of_older_plan else "its task was cleared", None
    at_rung = rung_text(view.rung, entry.lengths, units)
    return end_text(view.state, view.stop_requested_by, view.failure, at_rung), None
