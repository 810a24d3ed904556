"""Reports that count after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Report(Protocol):
    """Fields of a report that decide whether it counts."""

    @property
    def step(self) -> int:
        """Return the number of steps taken so far."""

    @property
    def attempt(self) -> int:
        """Return the number of the attempt that reported."""


AnyReport = TypeVar("AnyReport", bound=Report)


def current_branch(reports: Sequence[AnyReport]) -> list[AnyReport]:
    """Return the reports that lead to the current state of the trial, in their order.

    A restarted attempt resumes training at a checkpoint. From its first report on, it replaces everything that
    earlier attempts reported, because it took those steps again.
    """
    first: dict[int, int] = {}
    for report in reports:
        first[report.attempt] = min(report.step, first.get(report.attempt, report.step))
    kept = []
    for report in reports:
        later = [step for attempt, step in first.items() if attempt > report.attempt]
        if not later or report.step < min(later):
            kept.append(report)
    return kept
