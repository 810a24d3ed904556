"""Names of ``determined`` that scripts of its Core API use. Such a script changes only its import line.

::

    from airflow_provider_dtrain.train import determined as det

    info = det.get_cluster_info()
    with det.core.init() as core_context:
        core_context.train.report_training_metrics(steps_completed=10, metrics={"loss": 0.4})

What differs is in docs/training/core-api.md. PyTorch need not be installed.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_dtrain.train.determined import core
from airflow_provider_dtrain.train.determined.cluster_info import ClusterInfo, TrialInfo, get_cluster_info
from airflow_provider_dtrain.train.errors import InvalidHP
from airflow_provider_dtrain.train.foreign_names import finder

__all__ = ["LOG_FORMAT", "ClusterInfo", "InvalidHP", "TrialInfo", "core", "get_cluster_info"]

#: For ``logging.basicConfig(format=det.LOG_FORMAT)``.
LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"

finder.install()


def __getattr__(name: str) -> Any:
    """Return a submodule that is imported on first use, or raise with the remedy for what is not offered."""
    return finder.attribute("determined", name)
