"""Rows of the table of experiments."""

from __future__ import annotations

from typing import Any

from airflow_provider_dtrain.api.models.experiments import ExperimentRow
from airflow_provider_dtrain.api.rows import number
from airflow_provider_dtrain.store.records.pages import ExperimentEntry


def experiment_row(entry: ExperimentEntry, *, may_edit: bool) -> ExperimentRow:
    """Return an experiment as a row of the table."""
    return ExperimentRow(**experiment_fields(entry, may_edit=may_edit))


def experiment_fields(entry: ExperimentEntry, *, may_edit: bool) -> dict[str, Any]:
    """Return the fields of :class:`ExperimentRow`."""
    view = entry.view
    names = (
        "experiment_id", "name", "dag_id", "run_id", "state", "control_request", "method", "metric",
        "smaller_is_better", "best_trial", "max_trials", "created_at", "ended_at",
    )  # fmt: skip
    return {
        **{name: getattr(view, name) for name in names},
        "display_name": entry.labels.display_name,
        "best": number(view.best),
        "trials": dict(view.trials),
        "progress": entry.progress,
        "expected_end": entry.expected_end,
        "description": entry.labels.description,
        "tags": list(entry.labels.tags),
        "may_edit": may_edit,
    }
