"""The table of runs: trials of all experiments with chosen columns, groups of them, and saved views."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from airflow_provider_dtrain.core.expressions.names import Kind
from airflow_provider_dtrain.core.lifecycle.states import TrialState


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trial with the values of columns."""

    trial_id: int
    #: Display name; None: it has none.
    name: str | None
    #: Within its experiment, from 0.
    number: int
    experiment_id: int
    #: Display name of the experiment, else its name.
    experiment: str
    state: TrialState
    #: As of a trial in its list.
    never_fits: bool
    #: One for each column, None where there is no value. NaN and infinities are their names.
    values: list[Any]


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """One page of the table of runs."""

    rows: list[Run]
    total: int
    #: Names as they are written in expressions.
    columns: list[str]
    #: Of each column; None: it is no metric of the searchers of the matching experiments, or they differ.
    smaller_is_better: list[bool | None]
    #: Sentence about a name that no trial has, if no trial matches.
    hint: str | None


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """Figures of a column over a group, None where there is no number."""

    #: Trials that have a number.
    count: int
    mean: float | None
    #: Standard deviation of a sample; None for less than two numbers.
    std: float | None
    min: float | None
    max: float | None


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Trials with equal values."""

    #: One for each name of the grouping; None: the trials have no value.
    keys: list[Any]
    trials: int
    #: One for each column.
    figures: list[RunFigures]


@dataclass(frozen=True, kw_only=True)
class RunGroupPage:
    """One page of groups."""

    rows: list[RunGroup]
    #: Number of groups.
    total: int
    #: Names by which the trials are grouped, and columns with figures.
    by: list[str]
    columns: list[str]
    #: Of each column, as of trials.
    smaller_is_better: list[bool | None]


@dataclass(frozen=True, kw_only=True)
class RunFact:
    """A fact that expressions may name."""

    name: str
    kind: Kind
    meaning: str
    #: All its values; empty: any.
    choices: list[str]


@dataclass(frozen=True, kw_only=True)
class RunNames:
    """Names that expressions may have, as they are written there."""

    facts: list[RunFact]
    #: Of the latest trials of the latest experiments.
    params: list[str]
    metrics: list[str]


#: ``scatter``: one column over another, a point per trial; ``curves``: a metric of the first trials of the table.
ChartKind = Literal["scatter", "curves"]


@dataclass(frozen=True, kw_only=True)
class RunChart:
    """A chart that a view has pinned."""

    kind: ChartKind
    #: Name of the column of the y axis, or of the metric.
    y: str
    #: Name of the column of the x axis; empty for curves.
    x: str


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A saved view of the table of runs."""

    view_id: int
    name: str
    #: Name of the user who saved it.
    owner: str
    #: True: the user of the request may change it.
    is_own: bool
    is_shared: bool
    where: str
    columns: list[str]
    by: list[str]
    sort: str
    charts: list[RunChart]
    changed_at: datetime


@dataclass(frozen=True, kw_only=True)
class RunViewPage:
    """The views of a user, and those that other users share."""

    rows: list[RunView]
