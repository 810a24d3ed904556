"""The limit ``max_runtime`` of one gang."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_dtrain.core.lifecycle.timing import CLOCK_SLACK_S
from airflow_provider_dtrain.errors import MaxRuntimeError

if TYPE_CHECKING:
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.store.records.trials import AttemptView


def max_runtime(view: AttemptView, config: ExperimentConfig) -> tuple[float, float] | None:
    """Return ``max_runtime`` and time.monotonic() when it is over, or None without a limit.

    It counts from the grant, so restarts on the same gang do not extend it.
    """
    limit_s = config.max_runtime
    since = view.created_at if view.is_held_gang else view.granted_at
    if limit_s is None or since is None:
        return None
    return limit_s, time.monotonic() + limit_s - (datetime.now(UTC) - since).total_seconds()


def timed_out(view: AttemptView, config: ExperimentConfig) -> MaxRuntimeError | None:
    """Return the error of a run that its host ended because of ``max_runtime``, or None."""
    limit = max_runtime(view, config)
    return max_runtime_over(limit[0]) if limit is not None and limit[1] < time.monotonic() + CLOCK_SLACK_S else None


def max_runtime_over(limit_s: float) -> MaxRuntimeError:
    """Return the error of a run that used up its time.

    :param limit_s: ``max_runtime``
    """
    return MaxRuntimeError(
        f"The run was ended after max_runtime ({limit_s:g} s). Its checkpoints are kept. "
        "Raise max_runtime, or train for less."
    )
