"""Retention of a trial's checkpoints: which of them are kept, and removal of the rest."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.checkpoint.description import Checkpoint
from airflow_provider_dtrain.train.checkpoint.disk import DELETED, TEMPORARY, read
from airflow_provider_dtrain.train.checkpoint.found_checkpoints import candidates, order
from airflow_provider_dtrain.train.errors import CheckpointError

log = logging.getLogger(__name__)


def prune(folder: Path, policy: Mapping[str, Any]) -> list[Path]:
    """Delete the checkpoints that the policy does not keep. Return the deleted paths.

    :param policy: ``save_trial_best``, ``save_trial_latest``, ``metric``, ``smaller_is_better``
    """
    readable: list[Checkpoint] = []
    for path in candidates([folder]):
        try:
            readable.append(read(path))
        except CheckpointError:
            log.debug("Checkpoint %s cannot be read; it is kept.", path)
    kept = {checkpoint.path for checkpoint in keep(readable, policy)}
    gone = [checkpoint.path for checkpoint in readable if checkpoint.path not in kept]
    return [path for path in gone if _delete(path)]


def _delete(path: Path) -> bool:
    # A partly deleted checkpoint must not look intact.
    hidden = path.with_name(f".{path.name}.{os.getpid()}{DELETED}")
    try:
        path.rename(hidden)
    except OSError as error:
        log.warning("Checkpoint %s is no longer needed but cannot be removed: %s", path, error)
        return False
    shutil.rmtree(hidden, ignore_errors=True)
    return True


def sweep(folder: Path) -> None:
    """Remove leftovers of processes that were killed during a save or a removal.

    Only the process that holds the lock of the folder calls it, so that no other process writes there.
    """
    for path in [*folder.glob(f".step-*{TEMPORARY}"), *folder.glob(f".step-*{DELETED}")]:
        shutil.rmtree(path, ignore_errors=True)


def keep(checkpoints: Sequence[Checkpoint], policy: Mapping[str, Any]) -> list[Checkpoint]:
    """Return the checkpoints among the best of the trial or among its latest, newest first.

    A checkpoint without the metric, or with one that is not finite, is never among the best. Of equal ones, the later
    is better.
    """
    newest_first = sorted(checkpoints, key=lambda c: order(c.path), reverse=True)
    metric = policy.get("metric") or ""
    ranked = [c for c in newest_first if _is_finite(c.metrics.get(metric))]
    ranked.sort(key=lambda c: c.metrics[metric] * (1 if policy.get("smaller_is_better", True) else -1))
    best = ranked[: policy.get("save_trial_best", 1)]
    latest = newest_first[: policy.get("save_trial_latest", 1)]
    return [c for c in newest_first if c in best or c in latest]


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def policy_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to keep while the trial runs: ``keep`` (best, all or none), and the configured numbers and metric.

    It keeps more than the end result needs: an experiment's best are among its trials' best, and a restart needs the
    latest.
    """
    stored = config.get("checkpoint_storage") or {}
    searcher = config.get("searcher") or {}
    best = max(stored.get("save_trial_best", 1), stored.get("save_experiment_best", 0))
    return {
        "keep": config.get("checkpoint_policy") or "best",
        "metric": searcher.get("metric"),
        "smaller_is_better": searcher.get("smaller_is_better", True),
        "save_trial_best": best,
        "save_trial_latest": max(1, stored.get("save_trial_latest", 1)),
    }
