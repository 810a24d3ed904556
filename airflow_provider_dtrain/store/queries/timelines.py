"""Timelines of trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.resources.timeline import TrialTimeline
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.store import Store


def timeline_of(store: Store, rights: Rights, trial_id: int) -> TrialTimeline:
    """Return everything that happened to a trial, oldest first.

    :raises NotFoundError: there is no trial with this id that the user may read
    """
    return TrialTimeline(entries=store.timeline.of_trial(readable_trial(store, rights, trial_id).trial_id))
