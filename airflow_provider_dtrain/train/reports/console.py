"""Messages to a user who runs a script off-cluster. In a trial, the task log shows them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_dtrain.train.environment import RankEnvironment

log = logging.getLogger(__name__)


def log_validation(env: RankEnvironment, step: int, metrics: Mapping[str, Any]) -> None:
    """Log the metrics of a validation over all ranks, off-cluster."""
    if env.on_cluster or env.rank != 0:
        return
    pairs = metrics.items()
    parts = [f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in pairs]
    log.info("Validation at step %d: %s", step, ", ".join(parts))


def log_folder(env: RankEnvironment, checkpoint: str | None) -> None:
    """Log at the end where the latest checkpoint is and how to resume from it, off-cluster."""
    if env.on_cluster or env.rank != 0 or checkpoint is None:
        return
    folder = checkpoint.rpartition("/")[0]
    log.info("The latest checkpoint is %s. To resume from it, set checkpoint_dir=%r.", checkpoint, folder)


def log_end(env: RankEnvironment, epoch: int, count: int) -> None:
    """Log that all epochs are already trained."""
    if env.rank == 0 and epoch >= count > 0:
        log.info("Nothing is left to train: %d of %d epochs are done.", epoch, count)
