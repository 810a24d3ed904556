"""Retention of a trial's checkpoints: which of them are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_dtrain.train.checkpoint.description import SavedCheckpoint
from airflow_provider_dtrain.train.checkpoint.found_checkpoints import order


def keep(checkpoints: Sequence[SavedCheckpoint], policy: Mapping[str, Any]) -> list[SavedCheckpoint]:
    """Return the checkpoints among the best of the trial or among its latest, newest first.

    A checkpoint without the metric, or with one that is not finite, is never among the best. Of equal ones, the later
    is better.
    """
    newest_first = sorted(checkpoints, key=lambda c: order(c.url or c.path), reverse=True)
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
