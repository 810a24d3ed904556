"""Arguments and results of the table of runs: frozen values, each attribute with its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from airflow_provider_dtrain.core.expressions.names import Name
from airflow_provider_dtrain.core.expressions.tree import Expression
from airflow_provider_dtrain.core.lifecycle.states import TrialState
from airflow_provider_dtrain.store.records.pages import Dags

#: A figure of a group by which groups are ordered.
Measure = Literal["count", "mean", "std", "min", "max"]


@dataclass(frozen=True, kw_only=True)
class RunQuery:
    """Trials of all experiments that meet a condition."""

    #: None = all.
    where: Expression | None = None
    dags: Dags = None
    #: True: also trials that a newer trial of their task, or a newer plan, has replaced.
    with_replaced: bool = False
    limit: int = 100
    offset: int = 0
    descending: bool = False


@dataclass(frozen=True, kw_only=True)
class RunPageQuery(RunQuery):
    """One page of trials."""

    columns: Sequence[Name] = ()
    #: None: by the time of the submission.
    sort: Name | None = None


@dataclass(frozen=True, kw_only=True)
class GroupPageQuery(RunQuery):
    """One page of groups of trials."""

    #: Names with equal values in a group; None among them: all hyperparameters together.
    by: Sequence[Name | None] = ()
    #: Names whose figures are computed over each group; only numbers have any.
    columns: Sequence[Name] = ()
    #: A column of ``by``, or a figure of a column of ``columns``.
    sort: Name | None = None
    #: Figure that orders the groups; None: the value of a column of ``by``.
    measure: Measure | None = "count"


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """A trial with the values of columns."""

    trial_id: int
    experiment_id: int
    experiment: str
    number: int
    #: Display name.
    name: str | None
    state: TrialState
    never_fits: bool
    #: None where there is no value.
    values: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class GroupFigures:
    """Figures of one column over a group, None without a value."""

    #: Trials that have a number.
    count: int
    mean: float | None
    #: Standard deviation of a sample; None for less than two numbers.
    std: float | None
    min: float | None
    max: float | None


@dataclass(frozen=True, kw_only=True)
class GroupEntry:
    """Trials with equal values."""

    #: One for each name of the grouping.
    keys: Sequence[Any]
    count: int
    #: One for each column.
    figures: Sequence[GroupFigures]


@dataclass(frozen=True, kw_only=True)
class UsedNames:
    """Hyperparameters and metrics of trials, sorted."""

    params: Sequence[Name]
    metrics: Sequence[Name]


@dataclass(frozen=True, kw_only=True)
class StoredView:
    """A saved view."""

    view_id: int
    name: str
    owner_id: str
    owner: str
    is_shared: bool
    definition: Mapping[str, Any]
    changed_at: datetime
