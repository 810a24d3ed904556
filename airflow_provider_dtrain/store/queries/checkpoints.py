"""Checkpoints of trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.checkpoint_location import shown_path
from airflow_provider_dtrain.core.checkpoint_policy import best_checkpoint
from airflow_provider_dtrain.core.plain_data import plain_data
from airflow_provider_dtrain.resources.checkpoints import StoredCheckpoint, TrialCheckpoints
from airflow_provider_dtrain.store.queries.config_facts import config_facts
from airflow_provider_dtrain.store.queries.rights import readable_trial

if TYPE_CHECKING:
    from airflow_provider_dtrain.store.queries.rights import Rights
    from airflow_provider_dtrain.store.records.trials import CheckpointView, TrialView
    from airflow_provider_dtrain.store.store import Store


def checkpoints_of(store: Store, rights: Rights, trial_id: int) -> TrialCheckpoints:
    """Return all checkpoints of a trial, oldest first, with removed and refused ones.

    :raises NotFoundError: there is no trial with this id that the user may read
    """
    trial = readable_trial(store, rights, trial_id)
    return TrialCheckpoints(rows=[record for _, record in with_records(store, trial)])


def with_records(store: Store, trial: TrialView) -> list[tuple[CheckpointView, StoredCheckpoint]]:
    """Return all checkpoints of a trial, oldest first, each with its record."""
    saved = store.checkpoints.of_trial(trial.trial_id, removed=True)
    views = sorted([*saved, *store.checkpoints.refused(trial.trial_id)], key=lambda one: one.checkpoint_id)
    facts = config_facts(store, [trial.config_id])[trial.config_id]
    best = _best(views, facts.metric, smaller_is_better=facts.smaller_is_better)
    return [(view, _record(view, is_best=view is best)) for view in views]


def best_of(store: Store, trial_id: int, metric: str | None, *, smaller_is_better: bool) -> StoredCheckpoint | None:
    """Return the checkpoint from which the trial's result comes, None without a usable one."""
    best = _best(store.checkpoints.of_trial(trial_id), metric, smaller_is_better=smaller_is_better)
    return None if best is None else _record(best, is_best=True)


def _best(views: Sequence[CheckpointView], metric: str | None, *, smaller_is_better: bool) -> CheckpointView | None:
    usable = [one for one in views if one.refused is None and (one.removed_at is None or one.copy_url is not None)]
    return best_checkpoint(usable, metric, smaller_is_better) if usable else None


def _record(view: CheckpointView, *, is_best: bool) -> StoredCheckpoint:
    return StoredCheckpoint(
        checkpoint_id=view.checkpoint_id,
        trial_id=view.trial_id,
        attempt=view.attempt,
        step=view.step,
        host=view.host,
        path=view.path if view.refused is None else shown_path(view.path),
        copy_url=view.copy_url,
        size_bytes=view.size_bytes,
        sha256=view.sha256,
        metrics=plain_data(view.metrics),
        at=view.at,
        removed_at=view.removed_at,
        refused=view.refused,
        is_best=is_best,
    )
