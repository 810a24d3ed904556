"""What attempts and trials say of the search that they belong to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class InSearch:
    """The place of a trial in a search."""

    #: None: no search planned it.
    search_id: int | None = None
    bracket: int = 0
    #: Which sample of its number it has.
    draw: int = 0
    #: False: its hyperparameters are not drawn yet.
    is_drawn: bool = True
    #: Highest rung at which it has reported; None before the first.
    rung: int | None = None


@dataclass(frozen=True, kw_only=True)
class Judged(InSearch):
    """The same with what became of the trial so far."""

    #: Who asked to stop it with the best that it has.
    stop_requested_by: str | None = None
    #: Best finite value of the searcher's metric in a validation, and its step.
    best_metric: float | None = None
    best_step: int | None = None
    #: True: a newer trial of its task instance stands in its place.
    is_cleared: bool = False
    #: True: its experiment was planned anew, and this trial belongs to an earlier plan.
    is_of_older_plan: bool = False
