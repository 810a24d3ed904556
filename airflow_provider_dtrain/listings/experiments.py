"""Experiments as records."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from airflow_provider_dtrain.core.lifecycle.states import EXPERIMENT_LIVE
from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.resources.experiments import ExperimentDescription, ExperimentLine

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.pages import ExperimentEntry, Labels
    from airflow_provider_dtrain.store.records.searches import ExperimentView
    from airflow_provider_dtrain.store.store import Store


def experiment_line(entry: ExperimentEntry) -> ExperimentLine:
    """Return an experiment as a line of a list."""
    return ExperimentLine(**_facts(entry.view), **_labels(entry.labels))


def experiment_description(store: Store, view: ExperimentView) -> ExperimentDescription:
    """Return an experiment with its progress and its share of the queue."""
    entry = store.experiment_table.get(view.experiment_id) if view.state in EXPERIMENT_LIVE else None
    best = store.trials.get(view.best_trial).hparams if view.best_trial is not None else None
    return ExperimentDescription(
        **_facts(view),
        progress=None if entry is None or entry.progress is None else f"{math.floor(entry.progress * 100)} %",
        expected_end=None if entry is None else entry.expected_end,
        **_labels(store.labels.get("experiment", view.experiment_id)),
        best_hyperparameters=None if best is None else plain_data(best),
        weight=view.weight,
        max_slots=view.max_slots,
        control_request=view.control_request,
        requested_by=view.requested_by,
        without_checkpoint=store.checkpoints.missing(view.experiment_id) if entry is not None else [],
    )


def _facts(view: ExperimentView) -> dict[str, Any]:
    return {
        "experiment": view.experiment_id,
        "name": view.name,
        "dag": view.dag_id,
        "dag_run": view.run_id,
        "method": view.method,
        "state": _state(view),
        "trials": dict(sorted(view.trials.items())),
        "metric": view.metric,
        "smaller_is_better": view.smaller_is_better if view.metric is not None else None,
        "best": plain_data(view.best),
        "best_trial": view.best_trial,
        "created": view.created_at,
        "ended": view.ended_at,
    }


def _labels(labels: Labels) -> dict[str, Any]:
    return {"display_name": labels.display_name, "description": labels.description or None, "tags": list(labels.tags)}


def _state(view: ExperimentView) -> str:
    if view.state not in EXPERIMENT_LIVE or view.control_request is None:
        return view.state
    if view.control_request == "pause":
        return "running, pauses" if view.trials.get("running") else "paused"
    return f"{view.state}, {'stops' if view.control_request == 'stop' else 'is killed'}"
