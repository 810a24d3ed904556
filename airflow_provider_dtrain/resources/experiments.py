"""Experiments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_dtrain.resources.metrics import Value


@dataclass(frozen=True, kw_only=True)
class ExperimentLine:
    """An experiment in a list."""

    experiment: int
    name: str
    dag: str
    dag_run: str
    method: str | None
    #: With the control request of a user that is in force.
    state: str
    #: State -> number of trials.
    trials: dict[str, int]
    metric: str | None
    smaller_is_better: bool | None
    best: Value
    best_trial: int | None
    created: datetime
    ended: datetime | None
    display_name: str | None
    description: str | None
    tags: list[str]


@dataclass(frozen=True, kw_only=True)
class ExperimentDescription:
    """An experiment with its share of the queue."""

    experiment: int
    name: str
    dag: str
    dag_run: str
    method: str | None
    state: str
    trials: dict[str, int]
    metric: str | None
    smaller_is_better: bool | None
    best: Value
    best_trial: int | None
    created: datetime
    ended: datetime | None
    #: In percent, while it runs and its length is known.
    progress: str | None
    expected_end: datetime | None
    display_name: str | None
    description: str | None
    tags: list[str]
    best_hyperparameters: dict[str, Any] | None
    weight: float
    max_slots: int | None
    #: Control request in force, and its user.
    control_request: str | None
    requested_by: str | None
    #: Running trials that a pause sets back to their beginning.
    without_checkpoint: list[int]
