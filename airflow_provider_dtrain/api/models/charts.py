"""Curves of several trials, hyperparameters, and rungs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from typing_extensions import TypedDict

from airflow_provider_dtrain.api.models.common import Model, unchecked
from airflow_provider_dtrain.core.lifecycle.states import TrialState
from airflow_provider_dtrain.core.search.asha import Decision
from airflow_provider_dtrain.resources.metrics import MetricGroup, MetricName, Number
from airflow_provider_dtrain.resources.trials import TrialSummary

Axis = Literal["batches", "epochs", "time"]


@unchecked
class Curve(TypedDict):
    """One metric of one trial."""

    trial_id: int
    #: From 0 in its experiment; decides the colour of the curve.
    number: int
    trial_name: str
    state: TrialState
    is_best: bool
    #: Batches, epochs, or seconds since the first report of the trial.
    x: list[float]
    y: list[float | None]
    #: The trial has more reports than were read: extreme values between the points may be missing.
    sampled: bool


@unchecked
class Curves(TypedDict):
    """One metric of several trials. Points are reduced so that minimum and maximum stay visible."""

    metric: str
    group: MetricGroup
    x: Axis
    #: Trials that could be shown.
    total_trials: int
    series: list[Curve]


class HyperparameterColumn(Model):
    """One hyperparameter of the chart."""

    name: str
    kind: Literal["float", "int", "categorical", "const"]
    log: bool
    values: list[Any] | None


class Importance(Model):
    """Share of one hyperparameter in the spread of the metric."""

    name: str
    value: float
    #: How often chance makes it as important, from 0.01 to 1; None: not computed.
    chance: float | None = None


class Hyperparameters(Model):
    """Hyperparameters and metric of all trials, as columns."""

    names: list[HyperparameterColumn]
    trial_id: list[int]
    number: list[int]
    state: list[TrialState]
    metric: list[float | None]
    #: Name -> value of each trial.
    columns: dict[str, list[Any]]
    #: Largest first; empty: see the note.
    importance: list[Importance]
    #: How the importance was computed, why there is none, or why it tells little.
    importance_note: str
    #: It is being computed for the latest results, and a later request has it.
    is_importance_pending: bool


@unchecked
class RungEntry(TypedDict):
    """Report of a trial at a rung, and the decision on it."""

    trial_id: int
    number: int
    metric: Number | None
    #: None: the trial failed.
    decision: Decision | None
    #: Place among ``of`` reports when the decision was made, from 1.
    rank: int
    of: int
    #: The metric that it had to beat then; None: each report continued, or the rung is the last.
    cut_off: Number | None
    #: By how much the metric passed that cut-off; negative: by how much it missed it.
    distance: Number | None
    is_error: bool
    #: Its trial was cleared, and the entry no longer counts.
    has_left: bool
    at: datetime


@unchecked
class Rung(TypedDict):
    """One rung of a bracket."""

    rung: int
    units: int
    reported: int
    continued: int
    stopped: int
    #: The metric that the next report has to beat; None: each report continues, or the rung is the last.
    cut_off: Number | None
    #: Best first. A long rung is shown in part.
    entries: list[RungEntry]


@unchecked
class Bracket(TypedDict):
    """One bracket: rungs of increasing length of training."""

    bracket: int
    rungs: list[Rung]


@unchecked
class Rungs(TypedDict):
    """All brackets of a search."""

    metric: str | None
    smaller_is_better: bool
    divisor: int
    units: str
    brackets: list[Bracket]


@dataclass(frozen=True, kw_only=True)
class ComparedTrial(TrialSummary):
    """A trial beside others."""

    #: Name of its best metric; None: its configuration names none.
    metric: str | None


class Comparison(Model):
    """2 to 8 trials."""

    trials: list[ComparedTrial]
    metrics: list[MetricName]
    #: Latest reports of a trial name their epoch.
    has_epochs: bool
