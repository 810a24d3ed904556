"""Shards of trials that are batch inferences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.inference_progress import InferenceProgress, inference_progress

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.records.trials import TrialView
    from airflow_provider_dtrain.store.store import Store


def inference_progress_of(store: Store, trials: Sequence[TrialView]) -> dict[int, InferenceProgress]:
    """Return the progress of each trial that is a batch inference and has counted its shards."""
    counts = store.shards.counts([trial.trial_id for trial in trials]) if trials else {}
    now_s = store.db.now().timestamp()
    return {
        trial.trial_id: inference_progress(found, now_s=now_s, is_live=trial.state == "running")
        for trial in trials
        if (found := counts.get(trial.trial_id)) is not None
    }
