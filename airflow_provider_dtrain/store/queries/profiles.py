"""Profiles of trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_dtrain.resources.telemetry import Profile, SlowRank
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.telemetry import AttemptStepTimes
    from airflow_provider_dtrain.store.store import Store

#: Time buckets of a question that needs only totals.
_FEWEST: Final = 10


def profile_of(store: Store, rights: Rights, trial_id: int, attempt: int | None) -> Profile:
    """Return the summary of an attempt: timings of batches, ranges of system metrics, and slow ranks.

    :param attempt: its number; None = the latest
    :raises NotFoundError: there is no such attempt of a trial that the user may read
    """
    readable_trial(store, rights, trial_id)
    found = store.telemetry.timings(trial_id, attempt, _FEWEST)
    return Profile(
        attempt=found.attempt,
        timings=list(found.totals),
        system=store.telemetry.ranges(trial_id, found.attempt),
        slow_ranks=slow_ranks_of(store.telemetry.step_times(trial_id, found.attempt)),
        stragglers=store.stragglers.of_trial(trial_id, found.attempt),
    )


def slow_ranks_of(times: AttemptStepTimes) -> list[SlowRank]:
    """Return the ranks that are slow, the slowest first."""
    by_rank = {one.rank: one for one in times.ranks}
    return [
        SlowRank(rank=rank, host=one.host, busy_s=one.median_busy_s, ratio=one.ratio or 0.0)
        for rank in times.slow_ranks
        if (one := by_rank[rank])
    ]
