"""Fields of attempts and trials about the search that they belong to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class InSearch:
    """Position of a trial in a search."""

    #: None: no search planned it.
    search_id: int | None = None
    bracket: int = 0
    #: Index of its sample among those drawn for its trial number, from 0.
    draw: int = 0
    #: False: its hyperparameters are not sampled yet.
    is_drawn: bool = True
    #: Highest rung at which it has reported; None before the first.
    rung: int | None = None


@dataclass(frozen=True, kw_only=True)
class Judged(InSearch):
    """Position of a trial in a search, with its results so far."""

    #: The user who requested a stop with the best result so far.
    stop_requested_by: str | None = None
    #: Best finite value of the searcher's metric in a validation, and its step.
    best_metric: float | None = None
    best_step: int | None = None
    #: True: a newer trial of its task instance has replaced it.
    is_cleared: bool = False
    #: True: its experiment was planned again, and this trial belongs to an earlier plan.
    is_of_older_plan: bool = False
