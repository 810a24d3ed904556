"""Experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_dtrain.core.lifecycle.control import Archived, ControlRequest
from airflow_provider_dtrain.core.lifecycle.states import ExperimentState
from airflow_provider_dtrain.core.search.dimensions import DimensionKind
from airflow_provider_dtrain.resources.checkpoints import StoredCheckpoint
from airflow_provider_dtrain.resources.metrics import MetricName, Number


@dataclass(frozen=True, kw_only=True)
class ExperimentSummary:
    """One experiment in a list."""

    experiment_id: int
    #: The name from the configuration; ``display_name`` prevails on pages.
    name: str
    display_name: str | None
    dag_id: str
    run_id: str
    state: ExperimentState
    #: True: none of its trials runs, and no set of the pool's hosts can serve those that wait, as of the last pass.
    never_fits: bool
    #: Why its oldest request can never be served.
    reason: str | None
    #: Control request of a user that is in force.
    control_request: ControlRequest | None
    #: Name of the searcher; None: its only trial was submitted without one.
    method: str | None
    metric: str | None
    smaller_is_better: bool
    best: Number | None
    #: Id of the trial with the best metric.
    best_trial: int | None
    #: State -> number of trials, without cleared ones.
    trials: Mapping[str, int]
    #: Number of planned trials.
    max_trials: int
    #: From 0 to 1: trials that have ended, and parts of running ones, of the planned trials; None: unknown.
    progress: float | None
    #: From the durations of its ended trials, else from the progress of running ones; None: there is no estimate.
    expected_end: datetime | None
    created_at: datetime
    ended_at: datetime | None
    description: str
    tags: list[str]
    #: The user who triggered its DAG run, by Airflow's name; of a scheduled run the owner of the task in the DAG.
    owner: str
    project: str
    #: Lists leave it out, unless they are asked for archived experiments.
    archived: bool
    #: Its files and rows are being removed.
    is_deleting: bool
    may_edit: bool


@dataclass(frozen=True, kw_only=True)
class ExperimentFilter:
    """Experiments that a command or a client lists, latest first."""

    #: Part of the name; empty = all.
    name: str = ""
    #: Only those with all of these.
    tags: Sequence[str] = ()
    #: None: of all owners, and in all projects.
    owner: str | None = None
    #: Only those of the user who asks, whatever ``owner`` says.
    mine: bool = False
    project: str | None = None
    archived: Archived = "no"
    limit: int = 50


@dataclass(frozen=True, kw_only=True)
class ExperimentPage:
    """One page of experiments."""

    rows: list[ExperimentSummary]
    total: int
    #: All tags, owners and projects of experiments that the user may read, for the filters.
    tags: list[str]
    owners: list[str]
    projects: list[str]


@dataclass(frozen=True, kw_only=True)
class Search:
    """Plan of an experiment's trials."""

    search_id: int
    #: From 1; grows when a user clears the task that plans.
    generation: int
    divisor: int
    seed: int
    #: ``batches``, ``records``, ``epochs``, or the searcher's own time metric.
    units: str
    #: Bracket -> units of training at each of its rungs.
    rungs: Mapping[str, list[int]]
    #: 0: no cap.
    max_concurrent_trials: int
    #: ``random``, ``grid``, ``tpe`` ...
    sampler: str


@dataclass(frozen=True, kw_only=True)
class Hyperparameter:
    """One dimension of the search space, or a constant."""

    #: Dotted path.
    name: str
    kind: DimensionKind
    log: bool
    minimum: float | None
    maximum: float | None
    #: Values of a categorical, or the value of a constant.
    values: list[Any] | None


@dataclass(frozen=True, kw_only=True)
class ExperimentDetail(ExperimentSummary):
    """One experiment with its plan."""

    config_id: int | None
    search: Search | None
    best_checkpoint: StoredCheckpoint | None
    #: Of the best trial: dotted path -> value.
    best_hparams: Mapping[str, Any] | None
    #: Running trials that a pause sets back to their beginning.
    without_checkpoint: list[int]
    #: Share of the queue relative to other experiments.
    weight: float
    #: Most slots that its gangs hold at one time; None: no cap.
    max_slots: int | None
    #: The user of ``control_request``.
    requested_by: str | None
    metrics: list[MetricName]
    #: Reports name their epoch.
    has_epochs: bool
    #: ``description`` and ``labels`` of its configuration, beside those that users give on pages.
    config_description: str
    config_labels: list[str]
    hyperparameters: list[Hyperparameter]
    #: Its trials are batch inferences, which have shards instead of metrics and checkpoints.
    is_inference: bool
