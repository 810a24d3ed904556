"""Names of ``determined`` that scripts of its Core API use. Such a script changes only its import line.

::

    from airflow_provider_dtrain.train import determined as det

    info = det.get_cluster_info()
    with det.core.init() as core_context:
        core_context.train.report_training_metrics(steps_completed=10, metrics={"loss": 0.4})

What differs is in docs/training/core-api.md. PyTorch need not be installed.
"""

from __future__ import annotations

import importlib
from typing import Any

from airflow_provider_dtrain.train.determined import core
from airflow_provider_dtrain.train.determined.cluster_info import ClusterInfo, TrialInfo, get_cluster_info
from airflow_provider_dtrain.train.determined.refusals import refuse
from airflow_provider_dtrain.train.errors import InvalidHP

__all__ = ["LOG_FORMAT", "ClusterInfo", "InvalidHP", "TrialInfo", "core", "get_cluster_info"]

#: For ``logging.basicConfig(format=det.LOG_FORMAT)``.
LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"

#: Name of Determined -> remedy.
_INSTEAD = {
    "experimental": "Use det.core; commands and the Python client of dtrain control trials.",
    "keras": "Use det.core in the script, with model.fit between its calls.",
    "transformers": "Use airflow_provider_dtrain.train.integrations.transformers.DtrainCallback.",
    "launch": "Set entrypoint: python train.py. The ranks are started with the environment of torchrun.",
    "util": "Use the functions of Python or of the framework.",
}


def __getattr__(name: str) -> Any:
    """Return the module of trial classes, or raise with the remedy for what is not offered."""
    if name == "pytorch":
        # It imports torch.
        return importlib.import_module("airflow_provider_dtrain.train.pytorch")
    return refuse(f"module {__name__!r}", "determined", name, _INSTEAD)
