"""Asynchronous successive halving with stopping: decisions about the trials in a rung, in integers only.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020; divisor is its eta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Decision = Literal["continue", "stop", "complete"]

#: Rank value of a metric that cannot be compared. It ranks last.
LAST: Final = math.inf


def rank_value(metric: float | None, smaller_is_better: bool = True) -> float:
    """Return the sort key of a metric in a rung, smallest first.

    :data:`LAST` when the metric is not a finite number.

    :param metric: as reported; None: the trial failed
    """
    if metric is None or not math.isfinite(metric):
        return LAST
    return float(metric) if smaller_is_better else -float(metric)


def decide(index: int, count: int, divisor: int, *, is_top: bool) -> Decision:
    """Return the decision for a trial that has just entered a rung.

    :param index: entries of the rung that rank before it. Of equal entries, the earlier one ranks first
    :param count: entries of the rung, itself included
    :param divisor: >= 2
    :param is_top: whether it is the last rung
    """
    if is_top:
        return "complete"
    return "continue" if index < continuing(count, divisor) else "stop"


def continuing(count: int, divisor: int) -> int:
    """Return how many of ``count`` entries of a rung continue.

    :param count: >= 1
    :param divisor: >= 2
    """
    return max(1, count // divisor)


#: (rung, rank value) -> (entries that rank no later, all entries), both before the trial enters.
Standing = Callable[[int, float], tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class ReportResult:
    """Result of a report."""

    #: Rungs that the trial enters with this report, lowest first; may be empty.
    entered: tuple[int, ...]
    #: The rung that it enters next; the number of rungs after it has entered the last one.
    rung: int
    decision: Decision


def advance(
    lengths: Sequence[int], divisor: int, *, rung: int, length: int, value: float, standing: Standing
) -> ReportResult:
    """Return the rungs that a running trial enters with a report, and the decision for it.

    The caller writes one entry with ``value`` into each rung of ``entered``, in the transaction that read the standing.

    :param lengths: units of training at each rung, shortest first
    :param rung: the rung that the trial enters next
    :param length: units that it has trained
    :param value: of :func:`rank_value`
    :param standing: called once for each rung entered, before the trial enters it
    """
    entered: list[int] = []
    decision: Decision = "continue"
    while decision == "continue" and rung < len(lengths) and length >= lengths[rung]:
        before, count = standing(rung, value)
        entered.append(rung)
        decision = decide(before, count + 1, divisor, is_top=rung == len(lengths) - 1)
        rung += 1
    return ReportResult(entered=tuple(entered), rung=rung, decision=decision)
