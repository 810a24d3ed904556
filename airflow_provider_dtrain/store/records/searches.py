"""Arguments and results of searches: frozen values, each attribute with its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_dtrain.core.lifecycle.control import ControlRequest
from airflow_provider_dtrain.core.lifecycle.states import ExperimentState, TrialState
from airflow_provider_dtrain.core.projects import DEFAULT_PROJECT
from airflow_provider_dtrain.core.search.asha import Decision
from airflow_provider_dtrain.store.records.trials import TrialKey


@dataclass(frozen=True, kw_only=True)
class SearchSubmission:
    """One plan of an experiment's trials."""

    #: The task instance that plans.
    key: TrialKey
    experiment_name: str
    config_id: int
    #: Name of the searcher.
    method: str
    #: Name of the searcher's metric in a validation; None: the searcher uses none.
    metric: str | None = None
    smaller_is_better: bool = True
    #: One trial in ``divisor`` continues at a rung; >= 2.
    divisor: int = 4
    seed: int = 0
    #: True: the configuration names the seed. Otherwise a later generation keeps the seed of the first.
    is_seed_given: bool = False
    #: Bracket -> units of training at each of its rungs; empty: trials are never compared while they run.
    rungs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    #: Number of planned trials.
    max_trials: int = 1
    #: Most trials that hold a gang at one time; 0 = no cap.
    max_concurrent_trials: int = 0
    #: Share of the experiment relative to other experiments; read only when the experiment is created.
    weight: float = 1.0
    #: Most slots that all gangs of the experiment hold at one time; None = no cap. Read like ``weight``.
    max_slots: int | None = None
    #: Owner and project of the experiment. Read like ``weight``.
    owner: str = ""
    project: str = DEFAULT_PROJECT


@dataclass(frozen=True, kw_only=True)
class SearchView:
    """A search: one generation of an experiment."""

    search_id: int
    experiment_id: int
    experiment: str
    #: From 1; grows when a user clears the task that plans.
    generation: int
    key: TrialKey
    method: str
    metric: str | None
    smaller_is_better: bool
    divisor: int
    seed: int
    rungs: Mapping[int, tuple[int, ...]]
    max_trials: int
    max_concurrent_trials: int
    config_id: int
    created_at: datetime
    #: Time at which :meth:`Searches.end` ended it.
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class RungEntry:
    """Report of a trial at one rung, and the decision that it received."""

    trial_id: int
    trial_number: int
    bracket: int
    #: From 0.
    rung: int
    #: Units of training at the report.
    units: int
    #: None when the report held no finite number, and for a trial that failed.
    metric: float | None
    #: None for a trial that failed.
    decision: Decision | None
    #: True: the trial failed, and ranks last until it reports after all.
    is_error: bool
    #: Number of the attempt that reported.
    attempt: int
    at: datetime
    #: True: the trial was cleared since, and the entry no longer counts.
    has_left: bool = False
    #: Place of the trial among the entries of the rung at its decision, from 1, and their number with its own. None
    #: for a trial that failed.
    place: int | None = None
    entries: int | None = None
    #: The last metric that continued at this decision; None at the last rung, and where no finite number continued.
    cutoff: float | None = None


@dataclass(frozen=True, kw_only=True)
class HistoryRow:
    """One trial of a search as a sampler or a selection sees it."""

    trial_id: int
    number: int
    #: Empty until they are sampled.
    hparams: Mapping[str, Any]
    is_drawn: bool
    state: TrialState
    #: Best finite value of the searcher's metric; None without one.
    metric: float | None
    #: Units of training at its highest rung; 0 before the first.
    units: int


@dataclass(frozen=True, kw_only=True)
class SearchEnd:
    """Outcome of a search."""

    #: ``completed`` when at least one trial completed or was stopped, unless the experiment was killed.
    state: ExperimentState
    #: Failure of the trial that failed first; None when the search completed.
    failure: Mapping[str, Any] | None
    #: That trial's id.
    failed_trial_id: int | None
    #: State -> trials in it.
    trials: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ExperimentView:
    """An experiment with its newest generation."""

    experiment_id: int
    name: str
    dag_id: str
    run_id: str
    state: ExperimentState
    #: Control request in force (``pause``, ``stop`` or ``kill``) and its user; None = no request.
    control_request: ControlRequest | None
    requested_by: str | None
    owner: str
    project: str
    archived: bool
    #: Time from which its files and rows are removed; None = it stays.
    delete_requested_at: datetime | None
    #: None without a search.
    search_id: int | None
    #: Name of the searcher; ``single`` if no search planned the trials.
    method: str | None
    #: None without a search.
    generation: int | None
    metric: str | None
    smaller_is_better: bool
    #: Number of planned trials; without a search the number of submitted ones.
    max_trials: int
    #: State -> trials in it, without cleared ones.
    trials: Mapping[str, int]
    #: Best metric of the trials that are neither errored nor killed; None while there is none.
    best: float | None
    #: Id of the trial with the best metric.
    best_trial: int | None
    weight: float
    max_slots: int | None
    created_at: datetime
    ended_at: datetime | None
