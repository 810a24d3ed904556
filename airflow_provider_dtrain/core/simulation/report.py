"""Numbers for the comparison of simulated outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_dtrain.core.simulation.simulator import SimulationOutcome


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One outcome in numbers. A wait is completion - submission - duration."""

    jobs: int
    mean_wait_s: float
    p95_wait_s: float
    #: Of the jobs with more slots than the largest host has; None = there is none.
    p99_wide_wait_s: float | None
    longest_wait_s: float
    #: Mean of completion - submission.
    mean_completion_s: float
    #: From the first submission to the last completion.
    makespan_s: float
    #: Share of all slot-seconds of the makespan that were work.
    utilisation_ratio: float
    #: Share of the slots that were free while some job waited, as a mean over that time.
    fragmentation_ratio: float
    preemptions: int
    #: Share of the held slot-seconds that checkpoints and restarts took.
    lost_ratio: float


def summarise(outcome: SimulationOutcome) -> Summary:
    """Return the numbers of an outcome.

    :raises ValueError: no job has ended
    """
    done = outcome.completions
    if not done:
        raise ValueError("No job has ended: there is nothing to summarise.")
    waits = sorted(completion.wait_s for completion in done)
    wide = sorted(each.wait_s for each in done if each.job.slots > outcome.largest_host)
    span = max(each.end_s for each in done) - min(each.job.submit_s for each in done)
    work = sum(each.job.slots * each.job.duration_s for each in done)
    return Summary(
        jobs=len(done),
        mean_wait_s=sum(waits) / len(waits),
        p95_wait_s=percentile(waits, 95),
        p99_wide_wait_s=percentile(wide, 99) if wide else None,
        longest_wait_s=waits[-1],
        mean_completion_s=sum(each.end_s - each.job.submit_s for each in done) / len(done),
        makespan_s=span,
        utilisation_ratio=_ratio(work, span * outcome.slots),
        fragmentation_ratio=_ratio(outcome.idle_slot_s, outcome.contended_s * outcome.slots),
        preemptions=sum(each.preemptions for each in done),
        lost_ratio=_ratio(outcome.held_slot_s - work, outcome.held_slot_s),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed (nearest rank).

    :param ordered: ascending, not empty
    :param percent: > 0, at most 100
    """
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
