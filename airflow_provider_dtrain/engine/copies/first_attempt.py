"""First attempt whose files belong to a trial's present hyperparameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.trials import AttemptView
    from airflow_provider_dtrain.store.store import Store


def first_attempt(store: Store, view: AttemptView) -> int:
    """Return the number of a trial's first attempt with its present hyperparameters. Blocks."""
    if not view.draw:
        return 1
    refused = [
        one.number
        for one in store.attempts.of_trial(view.trial_id)
        if one.failure is not None and one.failure.get("error") == "InvalidHPError"
    ]
    return max(refused, default=0) + 1
