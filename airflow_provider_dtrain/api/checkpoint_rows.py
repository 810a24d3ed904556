"""Checkpoints as pages show them."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_dtrain.api.call import Call
from airflow_provider_dtrain.api.downloads import checkpoint_download
from airflow_provider_dtrain.api.models.checkpoints import Checkpoint
from airflow_provider_dtrain.api.rows import number
from airflow_provider_dtrain.engine.copies.checkpoints import best_checkpoint
from airflow_provider_dtrain.store.records.trials import CheckpointView


def checkpoint_rows(
    call: Call, views: Sequence[CheckpointView], experiment_id: int, best: CheckpointView | None
) -> list[Checkpoint]:
    """Return checkpoints in their order.

    :param best: see :func:`best_of`
    """
    chosen = None if best is None else best.checkpoint_id
    return [_row(call, view, experiment_id, is_best=view.checkpoint_id == chosen) for view in views]


def best_of(views: Sequence[CheckpointView], metric: str | None, *, smaller_is_better: bool) -> CheckpointView | None:
    """Return the checkpoint from which the trial's result comes, None without a usable one."""
    usable = [one for one in views if one.refused is None and (one.removed_at is None or one.copy_url is not None)]
    return best_checkpoint(usable, metric, smaller_is_better) if usable else None


def _row(call: Call, view: CheckpointView, experiment_id: int, *, is_best: bool) -> Checkpoint:
    names = (
        "checkpoint_id", "trial_id", "attempt", "step", "host", "size_bytes", "sha256", "at", "removed_at", "refused",
    )  # fmt: skip
    metrics = {
        name: number(float(value))
        for name, value in view.metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return Checkpoint(
        **{name: getattr(view, name) for name in names},
        location=view.copy_url or view.path,
        metrics=metrics,
        is_best=is_best,
        download=checkpoint_download(call, view, experiment_id),
    )
